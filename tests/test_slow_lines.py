"""The line that takes most of making batches is the finding, in the process where it runs."""

from played_gpu import CPU, MS, watched_log

from labkit.diagnosis import judge
from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.wording import with_advice
from labkit.results.core_use import CoreUse

TORCH = "/usr/lib/python3/site-packages/torch/utils/data/_utils/collate.py"
LOADER = LoopCode("loader", call="", arguments={"dataset": "data", "num_workers": "2"})
BUSY = {"workers": 2, "worker_cpu": 0.96, "worker_idle": 0.0}
AT_REST = {"workers": 2, "worker_cpu": 0.9, "worker_idle": 0.9}
ASKS = ("loader", "", "train.py", 57, "train", "")  # the line of the loop itself
STACKS = ("loader", "collate", TORCH, 275, "collate_tensor_fn", "torch.stack()")


def line(call, kind="library", number=15, function="Data.__getitem__", within="item"):
    return kind, within, "train.py", number, function, call


def sampler(call):
    return line(call, "python", 8, "Balanced.__iter__", within="")


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
        return {"event": "lines", "pid": pid, "t_ns": 1, "places": described, "rows": rows}

    begins = [1000.0 + 100 * step for step in range(60)]
    steps = [{"t": (at, at + wait_ms, at + wait_ms, at + 100)} for at in begins]
    rows = [(0, at + wait_ms, at + 100) for at in begins]
    count = known.get("workers", 0)
    run = watched_log(
        folder,
        CPU,
        [("optimizer", "optimizer.step()")],
        steps,
        rows,
        knobs={"num_workers": count, "batch_size": 64},
        events=[samples(pid, parts) for pid, parts in enumerate((waiting, worker)) if parts],
    )
    busy = known.get("worker_cpu", 0.0) > 0.5
    known = {"use": CoreUse(2, own=1.95 if busy else 0.5), "code": LOADER} | known
    evidence = StepTable(run).evidence().but(**known)
    return with_advice(judge.by_cost(evidence)[0], evidence, run)


def in_loop(place, part=0.9):
    return {place: part, ASKS: 1 - part}


def in_workers(place, part=0.9):
    return {place: part, STACKS: 1 - part}


ALL = {ASKS: 1.0}  # of the waiting, while workers make batches


def test_a_sampler_is_slow_in_the_loops_own_process_and_nothing_is_said_of_sending(tmp_path):
    chooses = line("remaining.remove()", "python", 9, "Balanced.__iter__.<lambda>", within="")
    lines = {sampler("random.sample()"): 0.35, chooses: 0.4, ASKS: 0.25}
    said = found(tmp_path, lines, {STACKS: 1.0}, **AT_REST)
    assert said.cause == "slow_line"
    assert "of the waiting, in the loop's own process, is in `" in said.evidence
    assert "torch.randperm" in said.advice
    assert "num_workers" not in said.advice and "uint8" not in said.advice + said.code
    # at most the function's part of the waiting goes
    assert f"At most {1 / (1 - 0.75 * 0.8):.1f} " in said.advice


def test_a_collate_function_without_workers_runs_in_the_loop_and_may_have_workers(tmp_path):
    pads = line("", "python", 17, "pad", within="collate")
    said = found(tmp_path, in_loop(pads))
    assert said.cause == "collate"
    assert (
        "90% of the waiting, in the loop's own process, is in pad() (train.py:17)" in said.evidence
    )
    assert "num_workers=2" in said.advice and "uint8" not in said.advice


def test_a_loop_that_hardly_waits_is_told_of_no_line(tmp_path):
    for workers in ({}, BUSY):
        opens = line("Image.open()")
        lines = (ALL, in_workers(opens)) if workers else (in_loop(opens),)
        said = found(tmp_path, *lines, wait_ms=5.0, **workers)
        assert said.name != "input"
