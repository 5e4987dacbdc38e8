"""The line that takes most of making batches is the finding, in the process where it runs."""

from dataclasses import replace

import pytest
from played_gpu import CPU, MS, watched_log

from labkit.diagnosis import judge
from labkit.diagnosis.evidence import WorkerEvidence
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.wording import worded
from labkit.results.core_use import CoreUse

SITE = ["train.py", 57, "train"]
TORCH = "/usr/lib/python3/site-packages/torch/utils/data/_utils/collate.py"
LOADER = LoopCode("loader", call="", arguments={"dataset": "data", "num_workers": "2"})
TENSORS = replace(
    LOADER, arguments=LOADER.arguments | {"batch_size": "64"}, dataset_type="TensorDataset"
)
BUSY = WorkerEvidence((0.95, 0.97), idle_share=0.0)
AT_REST = WorkerEvidence((0.9, 0.9), idle_share=0.9)
WAITING = WorkerEvidence((0.05, 0.1), idle_share=0.0)
ASKS = ("loader", "", "train.py", 57, "train", "")  # the line of the loop itself
STACKS = ("loader", "collate", TORCH, 275, "collate_tensor_fn", "torch.stack()")


def line(call, kind="library", number=15, function="Data.__getitem__", within="item"):
    return kind, within, "train.py", number, function, call


def sampler(call, number=8, function="Balanced.__iter__"):
    return line(call, "python", number, function, within="")


def found(folder, waiting=(), worker=(), wait_ms=80.0, **known):
    """Return what is said of steps of 100 ms whose waiting, and workers, were at these lines.

    Both are {place: part of that time, 0 to 1}; two cores, all used where workers compute.
    """
    places = {**dict(waiting), **dict(worker)}
    numbers = {place: str(number) for number, place in enumerate(places)}
    described = {numbers[place]: [*place, None] for place in places}

    def samples(pid, parts):
        rows = [
            [round((1000 + 100 * step + 1) * MS), round(part * wait_ms * MS), int(numbers[place])]
            for step in range(60)
            for place, part in dict(parts).items()
        ]
        for place in dict(waiting):
            described[numbers[place]][6] = SITE
        return {"event": "lines", "pid": pid, "t_ns": 1, "places": described, "rows": rows}

    begins = [1000.0 + 100 * step for step in range(60)]
    steps = [{"t": (at, at + wait_ms, at + wait_ms, at + 100)} for at in begins]
    rows = [(0, at + wait_ms, at + 100) for at in begins]
    workers = known.get("workers")
    count = workers.workers if workers else 0
    run = watched_log(
        folder,
        CPU,
        [("optimizer", "optimizer.step()")],
        steps,
        rows,
        knobs={"num_workers": count, "batch_size": 64},
        events=[samples(pid, parts) for pid, parts in enumerate((waiting, worker)) if parts],
    )
    busy = bool(workers) and workers.cpu_share > 0.5
    known = {"use": CoreUse(2, own=1.95 if busy else 0.5), "code": LOADER} | known
    evidence = replace(StepTable(run).evidence(), **known)
    return worded(judge.by_cost(evidence)[0], evidence, run)


def in_loop(place, part=0.9):
    return {place: part, ASKS: 1 - part}


def in_workers(place, part=0.9):
    return {place: part, STACKS: 1 - part}


ALL = {ASKS: 1.0}  # of the waiting, while workers make batches


WORKERS_LINES = {
    "self.db.execute().fetchone()": ("io", "train.py:15", "Create an index"),
    "self.cache[index]": ("proxy", "of the workers' time is `self.cache[index]`", "share_memory_"),
    "self.lock.acquire()": ("wait", "train.py:15", "a copy of its own, which needs no lock"),
    "self.lock": ("wait", "train.py:15", "wait for one lock"),
    "self.jobs_queue.get()": ("wait", "train.py:15", "to fill or empty a queue"),
    "self.sock.recv()": ("wait", "train.py:15", "waits for the network"),
    "h5py.File()": ("io", "train.py:15", "Open it once in each worker"),
    "AutoTokenizer.from_pretrained()": ("library", "train.py:15", "once in each worker"),
}


@pytest.mark.parametrize("workers", [BUSY, WAITING], ids=["busy", "waiting"])
@pytest.mark.parametrize("call", WORKERS_LINES)
def test_a_line_with_most_of_the_workers_time_is_the_finding_whatever_the_cores_do(
    call, workers, tmp_path
):
    kind, why, do = WORKERS_LINES[call]
    said = found(tmp_path, ALL, in_workers(line(call, kind)), workers=workers)
    assert (said.name, said.cause) == ("input", "item")
    assert "90% of the workers' time is" in said.evidence and why in said.evidence
    assert said.advice.startswith(f"`{call}` (train.py:15): ") and do in said.advice
    assert "At most 10.0 times as many steps" in said.advice or "At most 5.0" in said.advice
    assert "num_threads" not in said.code and "uint8" not in said.advice


def test_a_line_of_which_nothing_is_known_comes_after_what_can_be_tried_with_its_own_bound(
    tmp_path,
):
    slow = in_workers(line("time.sleep()", "wait"), 0.75)
    said = found(tmp_path, ALL, slow, workers=WAITING)
    assert said.advice.startswith("Use more workers, and see: num_workers=4")
    better = said.remedies[-1]
    assert better.text.startswith("Make `time.sleep()` in Data.__getitem__() (train.py:15) cheaper")
    assert better.at_most == pytest.approx(4.0)
    full = found(tmp_path, ALL, slow, workers=BUSY)
    assert full.advice.startswith("Make `time.sleep()`") and "num_workers" not in full.advice


@pytest.mark.parametrize("number", ["samples", "batches"])
def test_a_sampler_is_slow_in_the_loops_own_process_and_nothing_is_said_of_sending(
    number, tmp_path
):
    lines = {
        sampler("random.sample()"): 0.35,
        sampler("remaining.remove()", 9): 0.4,
        ASKS: 0.25,
    }
    if number == "batches":
        lines = {sampler("self.order.index()", 20, "Buckets.__iter__.<lambda>"): 0.8, ASKS: 0.2}
    said = found(tmp_path, lines, {STACKS: 1.0}, workers=AT_REST)
    assert said.cause == "slow_line"
    assert "in the loop's own process while its 2 workers can do nothing" in said.evidence
    assert "`random.sample()`" in said.evidence or number == "batches"
    assert "torch.randperm" in said.advice
    assert "num_workers" not in said.advice and "uint8" not in said.advice + said.code
    # the list is the cure of both of its lines
    assert f"At most {1 / (1 - (0.75 if number == 'samples' else 0.8) * 0.8):.1f} " in said.advice


def test_a_collate_function_without_workers_runs_in_the_loop_and_may_have_workers(tmp_path):
    pads = line("", "python", 17, "pad", within="collate")
    said = found(tmp_path, in_loop(pads))
    assert said.cause == "collate"
    assert "90% of the waiting, in the loop's own process, is pad() (train.py:17)" in said.evidence
    assert "num_workers=2" in said.advice and "uint8" not in said.advice


def test_a_generator_of_the_users_own_is_named_too(tmp_path):
    said = found(tmp_path, in_loop(sampler("float()", 8, "batches")))
    assert said.cause == "slow_line" and "`float()` in batches() (train.py:8)" in said.evidence


@pytest.mark.parametrize("workers", [BUSY, AT_REST], ids=["busy", "at rest"])
@pytest.mark.parametrize(
    "code, do", [(TENSORS, "sampler = BatchSampler("), (LOADER, "Fetch a batch at once")]
)
def test_cheap_items_are_to_be_fetched_at_once(code, do, workers, tmp_path):
    cheap = {STACKS: 1.0}
    said = found(tmp_path, ALL, cheap, workers=workers, code=code)
    assert said.cause == "hand_over"
    assert "of the workers' time is torch's own" in said.evidence
    assert do in said.advice + said.code
    assert "and over" not in said.title + said.evidence + said.advice + said.code


def test_a_verdict_of_another_kind_accounts_for_the_largest_lines_of_both_processes(tmp_path):
    lines = {
        line("Image.open()"): 0.4,
        line("self.crop()", number=16, function="Data.crop"): 0.3,
        STACKS: 0.3,
    }
    own = {sampler("self.draw()"): 0.3, ASKS: 0.7}
    said = found(tmp_path, own, lines, workers=BUSY)
    assert said.cause == "cores"
    assert "40% of the workers' time is `Image.open()`" in said.evidence
    assert "30% of the waiting is `self.draw()` in Balanced.__iter__()" in said.evidence
    assert said.advice.startswith("`Image.open()` (train.py:15): images are opened and decoded")


def test_a_loop_that_hardly_waits_is_told_of_no_line(tmp_path):
    for workers in (None, BUSY):
        opens = line("Image.open()")
        lines = (ALL, in_workers(opens)) if workers else (in_loop(opens),)
        said = found(tmp_path, *lines, wait_ms=5.0, workers=workers)
        assert said.name != "input"
