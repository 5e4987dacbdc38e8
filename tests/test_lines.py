"""The lines that time goes to: of known loops, of scripts from a terminal, and what `diff` says."""

import ast
import ctypes
import gc
import gzip
import io
import itertools
import json
import linecache
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import watched
from played_gpu import CPU, GPU, MS, watched_log
from torch.utils.data import DataLoader, Dataset

import labkit as lk
from labkit.__main__ import main
from labkit.bench import (
    expressions,
    gpu_tensors,
    kind_names,
    kinds,
    loader_clocks,
    main_thread,
    named_objects,
    stack,
    weight_updates,
)
from labkit.bench.batch_contents import padding_of
from labkit.bench.places import Places
from labkit.diagnosis import body_rules, sampled_stacks, wording
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.hot_lines import Line
from labkit.watching import growth
from labkit.watching.growth import Growth

pytestmark = pytest.mark.usefixtures("watches_end")
SLOW = pytest.mark.slow
posix_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
RECORDS = Path(lk.__file__).parent / "records" / "Intel-Xeon-Processor"


def burn(count):
    total = 0
    for i in range(count):
        total += i * 3
        if total > 1000:
            total -= 1000
    return total


def test_a_line_of_a_notebook_is_its_cells():
    line = Line("/tmp/ipykernel_1/123.py", 6, "<module>", 0.5, "body", "library", "json.dumps()")
    assert line.what == "`json.dumps()` (cell line 6)"


class Items(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, i):
        values = np.random.rand(200)
        time.sleep(0.002)
        return torch.from_numpy(values)


def slow_collate(batch):
    time.sleep(0.02)
    return torch.stack(batch)


@SLOW
@pytest.mark.parametrize(
    "causes, function, settings",
    [
        ("item", "Items.__getitem__", {}),
        ("item storage_latency", "Items.__getitem__", {"num_workers": 2}),
        ("collate storage_latency", "slow_collate", {"num_workers": 1, "collate_fn": slow_collate}),
    ],
)
def test_a_slow_loader_is_blamed_on_its_line_in_the_loop_and_in_workers(causes, function, settings):
    for batch in (watch := lk.watch(DataLoader(Items(), 4, **settings), live=False)):
        batch.sum()
    found = watch.diagnose().findings[0]
    assert found.name == "input" and found.cause in causes.split()
    line = found.lines[0]
    assert line.function.endswith(function) and line.call == "time.sleep()" and line.share > 0.5
    assert watch.loader.worker_init_fn is None  # given back


@pytest.mark.measures
@SLOW
def test_a_stall_is_named_with_its_period_and_its_line():
    net = torch.nn.Linear(256, 256)
    for step, batch in enumerate(watch := lk.watch([torch.randn(512, 256)] * 400, live=False)):
        net(batch).sum().backward()
        if step % 20 == 19:
            time.sleep(0.06)
    found = watch.diagnose().findings[0]
    assert (found.name, found.cause) == ("host", "periodic")
    assert "every 20th step" in found.evidence
    assert "time.sleep()" in [line.call for line in found.lines]


@SLOW
def test_a_variable_that_the_memory_goes_to_is_named_with_its_line():
    kept = []
    log = []
    gc.collect()
    if sys.platform == "linux":  # or the list grows in what earlier tests have freed
        ctypes.CDLL(None).malloc_trim(0)
    for i in (watch := lk.watch(range(500), live=False)):
        kept.append(torch.randn(400_000))
        log.append(float(i))
        time.sleep(0.012)
    drift = [f for f in watch.diagnose().findings if f.cause == "drift"]
    assert drift, [sample.get("rss_gib") for sample in watch.run.telemetry]
    (found,) = drift
    assert "`kept` in" in found.evidence and "memory rose" in found.evidence
    assert found.lines[0].line == kept_at()


GROWS_MS = np.linspace(8.0, 20.0, 300)
FLAT_MS = np.full(300, 10.0)
UNTIMED = {"event": "clock", "why": "the loop waits for each step"}


def watched_loop(
    tmp_path,
    steps_ms,
    *events,
    batch_bytes=None,
    rss_gib=None,
    kind="cpu",
    work=("optimizer", "optimizer.step()"),
    **used,
):
    """Return the run of a watched loop that does nothing but `work`, a kind and a call."""
    used = {"cpus": 2, "own_cpu": 0.5, "cpu": 0.5, "line_cpu": 0.02} | used
    ends = 1000.0 + np.cumsum(steps_ms)
    rows = [(0, end - ms, end) for end, ms in zip(ends, steps_ms, strict=True)]
    steps = [{"t": (begin, begin, begin, end)} for _, begin, end in rows]
    if batch_bytes is not None:
        steps = [step | {"bytes": int(n)} for step, n in zip(steps, batch_bytes, strict=True)]
    read = [{"t_ns": round(end * MS), **used} for end in ends[::25]]
    if rss_gib:
        for sample, gib in zip(read, np.linspace(*rss_gib, len(read)), strict=True):
            sample["rss_gib"] = float(gib)
    machine = CPU if kind == "cpu" else GPU
    more = {"knobs": {"num_workers": 0}, "events": events}
    return watched_log(tmp_path, machine, [work], steps, rows, read, **more)


@pytest.mark.parametrize(
    "batch_bytes, drifts",
    [
        (np.linspace(4000, 10000, 300), False),  # as long for each byte
        (np.linspace(4000, 7000, 300), False),  # as attention, with the square
        (np.full(300, 4000), True),
        (np.repeat([4000, 16000], [240, 60]), True),  # the steps had grown before
        (None, True),  # an older record
    ],
)
def test_steps_that_grow_with_their_batches_are_no_leak(batch_bytes, drifts, tmp_path):
    found = watched_loop(tmp_path, GROWS_MS, batch_bytes=batch_bytes).diagnose()
    assert ("drift" in [each.cause for each in found.findings]) == drifts, found
    assert ("the input grows" in found.evidence) != drifts


def test_something_is_said_to_be_kept_only_where_it_was_found_or_memory_rose(tmp_path):
    slower = np.linspace(8.0, 11.5, 300)  # as a machine that slows a little
    assert "drift" not in {
        found.cause for found in watched_loop(tmp_path, slower).diagnose().findings
    }
    longer = watched_loop(tmp_path, GROWS_MS).diagnose().findings[0]
    assert longer.cause == "drift" and "kept" not in longer.advice
    assert "sizes of what it works on" in longer.advice
    risen = watched_loop(tmp_path, slower, rss_gib=(1.0, 3.0)).diagnose().findings[0]
    assert "is kept from step to step" in risen.advice and "memory rose from" in risen.evidence


@pytest.mark.parametrize("batches", ["float64", "int64"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_weights_of_64_bits_are_named_where_the_device_is_the_limit(kind, batches, tmp_path):
    dtypes = {"weights_dtype": "float64", "batch_dtype": batches}
    job = {"event": "job", "pipeline": {"num_workers": 0}, "not_applied": {}, **dtypes}
    clock = {"event": "clock", "why": "the loop waits for each step"}
    found = watched_loop(tmp_path, FLAT_MS, job, clock, kind=kind).diagnose()
    first = found.findings[0]
    assert (first.name, first.cause, first.lost_share) == ("precision", "float64", 0.0)
    assert "model.float()" in first.code
    assert ("batch.float()" in first.code) == (batches == "float64")
    assert ("1/64" in first.evidence) == (kind == "gpu")
    assert "Expect" not in first.advice and 0 < found.confidence < 1
    single = watched_loop(tmp_path, FLAT_MS, {**job, "weights_dtype": "float32"}).diagnose()
    assert "float64" not in str(single)


@pytest.mark.parametrize("mib, bottleneck", [(40, "transfer"), (1, "unsure")])
def test_a_loop_that_stands_at_a_copy_copies_or_waits_for_the_device(mib, bottleneck, tmp_path):
    sizes = np.full(len(FLAT_MS), mib * 2**20)
    moves = ("copy", "images.to()")
    made = {"batch_bytes": sizes, "kind": "gpu", "work": moves}
    found = watched_loop(tmp_path, FLAT_MS, UNTIMED, **made).diagnose()
    assert found.bottleneck == bottleneck, found
    if bottleneck == "transfer":
        assert "`images.to()` in train() (train.py:57)" in found.evidence
        assert "pin_memory=True" in found.advice


def test_what_an_h200_certainly_did_bounds_what_the_body_of_its_loop_costs(tmp_path):
    """Transformers' Trainer asks each step whether the loss is a number, and so waits for it."""
    told = gzip.open(Path(__file__).with_name("h200_trainer.jsonl.gz"), "rt").read()
    assert '["torch","","' in told
    path = tmp_path / "run.jsonl"
    path.write_text(told.replace('["torch","","', '["library","","'))  # as it was told first
    run = lk.load(path)
    assert run.lines.body["python"] > 0.7
    assert run.diagnose().bottleneck == "compute"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        event.pop("gpm", None)
        event.pop("power_w", None)
        event.pop("energy_j", None)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert lk.load(path).diagnose().bottleneck == "host"  # nothing tells that the device worked


def small_card(tmp_path, change):
    """Return the verdict on the H200's record, of a card that draws a fifth of its limit."""
    with gzip.open(Path(__file__).with_name("h200_trainer.jsonl.gz"), "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        if event["event"] == "telemetry":
            event |= {"gpm": None, "energy_j": None, "power_w": 150.0}
        change(event)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return lk.load(path).diagnose().findings[0]


@pytest.mark.parametrize(
    "file, call, remedy",
    [
        ("", "torch.isinf()", "no_nan_filter"),  # the Trainer's own
        ("/x/site-packages/package/callback.py", "loss.item()", "read_rarely"),
        ("/home/me/train.py", "loss.item()", "no_synchronising"),
    ],
)
def test_a_wait_that_is_not_the_users_own_is_not_advised_to_be_taken_out(
    tmp_path, file, call, remedy
):
    def change(event):
        if event["event"] == "spec":
            event["watched"]["code"] = {"training": "args"}
        for place in event["places"].values() if event["event"] == "lines" else ():
            if "torch.is" in place[5]:
                place[0], place[2], place[5] = "sync", file or place[2], call

    found = small_card(tmp_path, change)
    assert (found.cause, found.remedies[0].key) == ("sync", remedy)
    assert ("loss.detach()" in found.code) == (remedy == "no_synchronising")
    if remedy == "no_nan_filter":
        assert found.code.endswith("args = replace(args, logging_nan_inf_filter=False)\n")


@pytest.mark.parametrize("card", ["NVIDIA H200", "Tesla T4"])
def test_a_loss_scaler_is_not_needed_where_the_card_has_bf16(tmp_path, card):
    def change(event):
        if event["event"] == "machine":
            event |= {"name": card, "compute_capability": None}
        for place in event["places"].values() if event["event"] == "lines" else ():
            if "torch.is" in place[5]:
                place[0], place[5] = "inner_sync", "scaler.step()"

    found = small_card(tmp_path, change)
    needless = card == "NVIDIA H200"
    assert (found.remedies[0].key == "no_scaler") == needless
    assert ("scaler.step()" in found.evidence) == needless


def test_a_watched_loop_without_a_loss_is_not_called_healthy_for_certain(tmp_path):
    found = watched_loop(tmp_path, FLAT_MS).diagnose()
    assert found.findings[0].cause == "the_device_is_the_limit"
    assert found.confidence == limits.LINES_SEEN < 1
    assert "watched loop sees" in found.advice and "Nothing in the pipeline" not in found.advice


@pytest.mark.parametrize("others, cause", [(0.0, "drift"), (0.3, ""), (1.2, "neighbour")])
def test_steps_that_grow_beside_other_programs_are_not_blamed_on_the_loops_own_lines(
    others, cause, tmp_path
):
    used = {"cpu": 0.5 + others / 2, "line_cpu": 0.02}
    found = watched_loop(tmp_path, GROWS_MS, **used).diagnose()
    causes = [each.cause for each in found.findings]
    assert ("drift" in causes) == (cause == "drift"), found
    assert cause in causes or cause == ""
    assert ("Other programs used" in str(found)) == (others > 0)


def test_the_sizes_and_number_formats_of_a_watched_loop_are_recorded():
    weights = torch.nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(weights.parameters(), 0.1)
    rows = [torch.ones(length, 3, dtype=torch.float64) for length in range(2, 12)]
    batches = [(torch.ones(1), {"x": each}) for each in (*rows, None)]
    for _ in (watch := lk.watch(batches, live=False)):
        watch._recorder.trained_by(optimizer)
    run = watch.run
    assert run.batch_bytes[:-1].tolist() == [each.nbytes for each in rows]
    assert np.isnan(run.batch_bytes[-1])
    assert (run.weights_dtype, run.batch_dtype) == ("float64", "float64")


def kept_at():
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if "kept.append(" in line)


@SLOW
def test_a_loader_made_anew_continues_its_run_and_another_dataset_has_its_own():
    train = [torch.randn(4)] * 64
    other = [torch.randn(4)] * 16

    def epoch(dataset):
        for _ in (watch := lk.watch(DataLoader(dataset, batch_size=4), live=False)):
            pass
        return watch

    passes = [epoch(each) for each in (train, other) * 3]
    assert passes[0] is passes[2] is passes[4] and passes[1] is passes[3] is passes[5]
    assert (passes[0].run.steps, passes[1].run.steps) == (48, 12)


def test_padding_of_somebodys_batches_is_told_from_other_whole_numbers():
    text = torch.zeros(3, 12, dtype=torch.long)
    for row, length in enumerate((12, 6, 3)):
        text[row, :length] = torch.randint(1, 99, (length,))
    share = 1 - 21 / 36
    assert padding_of((text, torch.ones(3))) == pytest.approx(share)
    for rows in (text, text.flip(1)):  # a decoder's padding is on the left
        batch = {"input_ids": rows, "attention_mask": (rows > 0).long()}
        assert padding_of(batch) == pytest.approx(share)
    for other in (torch.randint(0, 2, (16, 40)), torch.randn(4, 12), [1, 2], None, "text"):
        assert padding_of(other) is None, other


def test_what_grows_is_told_from_what_is_emptied_and_no_code_of_the_users_is_run():
    class Lazy:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    def loop(look):
        lazy = Lazy()
        window = []
        losses = []
        weight = torch.ones(1, requires_grad=True)
        for step in range(160):
            window.append(weight * 2)
            losses.append(weight * 2)
            if len(window) == 40:
                window.clear()
            if step % 16 == 15:
                look(step)
        return lazy

    grown = Growth()
    loop(lambda step: grown.look(sys._getframe(1), loop.__code__, step))
    assert set(grown.found) == {"losses"} and grown.found["losses"]["graph"]


@pytest.mark.parametrize("entry", ["number", "tensor", "pair"])
def test_an_episodes_list_that_is_made_anew_does_not_grow_though_episodes_do(entry):
    def loop(look):
        weight = torch.ones(1, requires_grad=True)
        every = []
        for episode in range(8):
            logs = []
            returned = torch.zeros(())
            for step in range(20 + 9 * episode):
                made = {"number": float(step), "tensor": weight * 2, "pair": (weight * 2, step)}
                logs.append(made[entry])
                every.append(made[entry])
                returned = returned + weight * 2
            look(30 * episode)  # an optimizer's step for each few of the world's

    grown = Growth()
    loop(lambda step: grown.look(sys._getframe(1), loop.__code__, step))
    assert set(grown.found) == {"every"}


def test_a_sum_that_keeps_each_steps_graph_grows_until_it_is_emptied():
    def loop(look):
        weight = torch.ones(1, requires_grad=True)
        total = 0.0
        for step in range(100):
            total = total + weight * 2
            if step % 9 == 8:
                look(step)
        assert grown.found["total"]["graph"]
        total = 0.0 + weight * 2
        look(100)

    grown = Growth()
    loop(lambda step: grown.look(sys._getframe(1), loop.__code__, step))
    assert not grown.found


@pytest.mark.skipif(sys.platform != "linux", reason="stacks are sampled on Linux only")
def test_no_sleep_in_c_code_is_cut_short_and_both_kinds_of_time_are_seen():
    sleep = ctypes.CDLL(None).usleep  # returns -1 where a signal ends it
    answers = []
    for _ in (watch := lk.watch(range(300), live=False)):
        burn(4_000)
        answers.append(sleep(2_000))
    assert answers == [0] * 300
    lines = watch.run.lines
    assert {("burn", ""), (sys._getframe().f_code.co_name, "sleep()")} <= {
        (line.function, "" if line.function == "burn" else line.call) for line in lines.lines
    }


LOOKED_AT_WHILE_FRAMES_GO = """
import gc, sys, threading, time
from labkit.bench import stack

class Finalized:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.0002)  # lets the other thread go on

def inner(depth):
    return inner(depth - 1) if depth else None

def look():
    while time.monotonic() < ends:
        Finalized()
        frame = stack.top_frame(threading.main_thread().ident)
        kept = []
        while frame is not None:
            kept.append(frame)
            frame = frame.f_back

ends = time.monotonic() + 4
sys.setswitchinterval(1e-4)
gc.set_threshold(5, 1, 1)
beside = threading.Thread(target=look)
beside.start()
while time.monotonic() < ends:
    inner(300)  # frames in more than one piece of memory, which is given back
beside.join()
assert gc.isenabled()
"""


@pytest.mark.slow
def test_a_stack_is_walked_from_beside_while_its_frames_go():
    """Python 3.11 crashes within seconds where garbage is collected meanwhile."""
    subprocess.run([sys.executable, "-c", LOOKED_AT_WHILE_FRAMES_GO], check=True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python knows lines only")
def test_a_loop_that_asks_for_its_next_item_does_not_call_what_its_body_calls():
    def items():
        for number in range(3):
            asked.append(expressions.call_text(expressions.expression(sys._getframe(1))))
            yield number

    asked = []
    made = items()
    for number in made:
        len([number])
    assert asked == [""] * 3


class Kept(torch.nn.Module):
    """A user's class, which keeps tensors in several ways."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.loss = torch.ones(())


@pytest.mark.parametrize(
    "kind, texts",
    [("sync", ("kept.loss.item()", "out['loss'].item()", "losses[0].item()", "losses[-1].cpu()",
               "float(kept.loss)", "own(x).item()", "own(x).argmax(1).tolist()", "'%.4f' % loss",
               "text % (1, loss)", "text % args", "batch['x'].to('cpu')", "math.exp(loss)",
               "max(best, loss)", "range(kept.loss)", "torch.where(x)", "x.masked_select(x)")),
     ("copy", ("out['loss'].to('cuda')", "batch['x'].to(device)", "losses[at].cuda()",
               "torch.tensor([1], device=device)")),
     ("torch", ("kept.weight * x", "torch.where(x, x, x)", "torch.tensor([1])", "out['loss'] < 2")),
     ("python", ("range(x.size(0))", "max(x.shape)", "out.items()", "out.get('loss')")),
     ("library", ("array.mean().item()", "np.mean(array).item()"))],
)  # fmt: skip
def test_a_tensor_is_known_wherever_the_users_code_keeps_it(kind, texts, monkeypatch):
    loss = torch.ones(())

    def own(value):
        raise AssertionError("the user's code ran")

    names = {"np": np, "torch": torch, "math": math, "own": own, "loss": loss, "x": loss}
    names |= {"kept": Kept(), "losses": [loss], "array": np.ones(3), "out": {"loss": loss}}
    names |= {"batch": UserDict(x=loss), "text": "%.4f of %.4f", "best": 2.0, "at": 0}
    names |= {"args": (loss, 1), "device": torch.device("cuda"), "__name__": "__main__"}
    exec("import sys\nframe = sys._getframe()", names)
    monkeypatch.setattr(gpu_tensors, "lies_on_gpu", lambda value: isinstance(value, torch.Tensor))
    for each in texts:
        node = ast.parse(each, mode="eval").body
        assert kinds.kind_of_node(node, names["frame"]) == kind, each
    truth = ast.parse("args", mode="eval").body  # `if args:` asks a tuple for its length
    assert not kinds.value_on_gpu(truth, names["frame"])


def test_a_logger_that_writes_a_tensor_of_a_gpu_waits_for_it(monkeypatch):
    def played(node, frame):
        found = named_objects.looked_up(node, frame)
        return found if isinstance(found, torch.Tensor) else None

    frames = []

    def caught(*_given):
        frame = sys._getframe(1)
        while frame.f_code.co_name != "written":
            frames.append(frame)
            frame = frame.f_back
        return 1.0

    def written(loss):
        return f"{loss:.2f}"

    monkeypatch.setattr(torch.Tensor, "item", caught)
    written(torch.ones(()))
    assert kinds.kind_of_calls(frames) == "torch"
    monkeypatch.setattr(gpu_tensors, "tensor_on_gpu", played)
    assert kinds.kind_of_calls(frames) == "sync"


def test_looking_at_the_variables_of_a_loop_keeps_none_of_them():
    """A local of 200 MB is freed when the user's function lets go of it."""

    def step():
        activations = torch.empty(50_000_000)
        gone.append(weakref.ref(activations))
        frame = sys._getframe()
        Growth().look(frame, step.__code__, 0)
        kinds.kind_and_call(frame)
        del activations, frame
        assert gone[-1]() is None

    def step_with_a_snapshot_of_its_own():
        mine = 1
        seen = locals()
        Growth().look(sys._getframe(), step_with_a_snapshot_of_its_own.__code__, 0)
        assert seen["mine"] == mine

    def step_that_shows_its_arguments(arguments):
        vars(arguments)
        return stack.locals_of(sys._getframe())

    gone = []
    step()
    step_with_a_snapshot_of_its_own()
    assert "arguments" in step_that_shows_its_arguments(Growth())


def test_the_files_that_are_told_apart_by_name_exist():
    assert all(map(os.path.isfile, stack.STAND_FOR_USERS | stack.RECORDERS))


def test_the_clock_that_times_the_items_is_no_line_of_the_users(tmp_path, monkeypatch):
    """An item without system calls: its process is put off the core in the clock's."""
    places = Places(None)
    places.loop = loader_clocks.ThreadClock.__init__.__code__
    monkeypatch.setattr(loader_clocks, "now_ns", lambda: places.number_of(sys._getframe(1)))
    loader_clocks.ThreadClock()
    clock = places.fresh[0]
    assert clock[0] == "labkit" and clock[4].endswith("_read")
    lines = sampled(tmp_path, ["python", "item", "a.py", 1, "f", "", None], clock)
    assert len(lines) == 1 and lines.share.tolist() == [1.0]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="nobody tells the line")
def test_a_thread_in_line_for_a_core_computes_and_does_not_sleep():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on the same core
    try:
        time.sleep(0.2)
        thread = main_thread.MainThread()
        ends = time.perf_counter() + 0.5
        while time.perf_counter() < ends:
            pass
        spent = {how: after - thread.placed[how] for how, after in thread.spent_ns().items()}
    finally:
        burner.kill()
        burner.wait()
        os.sched_setaffinity(0, cores)
    thread.release()
    assert spent["off"] < 0.2 * spent["user"]


def test_the_timer_of_the_samples_is_no_line_of_the_users():
    """The signal's handler arms it again, in whatever code of the user's the signal came."""
    places = Places(None)
    timer = main_thread.Timer.__new__(main_thread.Timer)
    timer.timer = None
    armed = SimpleNamespace(timer_settime=lambda *_: places.number_of(sys._getframe(1)))
    timer.library = armed
    timer.arm(0.01)
    assert places.fresh[0].kind == "labkit"


def test_a_thread_beside_knows_from_the_loops_own_samples_where_gradients_are_off():
    places = Places(None)
    places.loop = sys._getframe().f_code
    seen = []

    def look(_module, _args):
        top = sys._getframe(1)
        places.number_of(top)
        beside = threading.Thread(target=lambda: seen.append(places._seen(top).grad))
        beside.start()
        beside.join()

    model = torch.nn.Linear(4, 4)
    model.register_forward_pre_hook(look)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            model(torch.rand(2, 4))
    model(torch.rand(2, 4))
    assert seen == [True, False, True]


def sampled(tmp_path, *places, pid=1):
    """Return the lines of a record sampled once in each place: of a worker, or pid 0's body."""
    with gzip.open(RECORDS / "workers-2.jsonl.gz", "rt") as file:
        text = file.read()
    within = lk.recorded("workers-2").steps_since(0)[10]["t"][3] + 1
    rows = [[within, 10 - number, number] for number in range(len(places))]
    event = {
        "event": "lines",
        "pid": pid,
        "t_ns": 1,
        "places": dict(enumerate(places)),
        "rows": rows,
    }
    path = tmp_path / "run.jsonl"
    path.write_text(text + json.dumps(event) + "\n")
    return lk.load(path).lines


class Noted(Dataset):
    def __init__(self, note):
        self.note = note

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.note(sys._getframe())
        return index


class Sgd(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        self.defaults["note"](sys._getframe())


def descend(weights, note):
    for weight in weights:
        note(sys._getframe())
        weight -= 0.1 * weight.grad


def noted(work):
    """Return the places that `work`, given what notes its stack, is at."""
    places = Places(None)
    places.loop = noted.__code__
    work(places.number_of)
    return places.fresh


def kinds_at_calls(name, work, monkeypatch):
    """Return the kinds of work of the stacks in which `work` calls a function of C."""
    monkeypatch.setattr(named_objects, "locals_of", lambda frame: dict(frame.f_locals))
    monkeypatch.setattr(kinds, "is_gpu_in_use", lambda: True)
    found = set()

    def note(frame, event, called):
        if event == "c_call" and called.__name__ == name:
            sys.setprofile(None)
            around = [frame, *(each[0] for each in traceback.walk_stack(frame.f_back))]
            inside = itertools.takewhile(lambda each: each.f_code is not work.__code__, around)
            found.add(kinds.kind_of_calls(inside) or kinds.kind_and_call(frame)[0])
            sys.setprofile(note)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_a_loss_scaler_and_other_packages_wait_for_a_gpu(monkeypatch):
    monkeypatch.setattr(
        gpu_tensors, "lies_on_gpu", lambda value: isinstance(value, torch.Tensor)
    )  # for want of one
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")

    def update():
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)

    assert kinds_at_calls("item", update, monkeypatch) == {"inner_sync"}  # torch's own
    numbers = torch.arange(4)

    def holds():
        assert 3 in numbers

    assert kinds_at_calls("item", holds, monkeypatch) == {"sync"}
    assert kinds_at_calls("_unique2", lambda: numbers.unique(), monkeypatch) == {"sync"}

    def save():
        torch.save(model.state_dict(), io.BytesIO())

    assert "sync" not in kinds_at_calls("cpu", save, monkeypatch)  # a checkpoint stays one


def test_a_logger_waits_for_the_tensors_of_its_message(monkeypatch):
    log = logging.getLogger("of a test")
    handler = logging.StreamHandler(io.StringIO())
    log.addHandler(handler)
    loss = torch.ones(1)

    def write():
        log.warning("%.4f", loss)

    for on_gpu in (False, True):
        monkeypatch.setattr(
            gpu_tensors, "lies_on_gpu", lambda value, on_gpu=on_gpu: on_gpu and value is loss
        )
        assert ("sync" in kinds_at_calls("write", write, monkeypatch)) == on_gpu
    log.removeHandler(handler)


def test_what_a_package_sends_to_the_device_is_a_copy(monkeypatch):
    accelerate = pytest.importorskip("accelerate.utils")
    transformers = pytest.importorskip("transformers")
    device = torch.device("meta")
    batch = {"x": torch.ones(2)}
    encoded = transformers.BatchEncoding({"x": torch.ones(2)})

    def send():
        accelerate.send_to_device(batch, device)

    assert kinds_at_calls("to", send, monkeypatch) == {"copy"}
    assert kinds_at_calls("to", lambda: encoded.to(device), monkeypatch) == {"copy"}
    assert kinds_at_calls("to", lambda: encoded.x.to(device), monkeypatch) == {"copy"}
    half = torch.float16
    assert kinds_at_calls("to", lambda: batch["x"].to(half), monkeypatch) == {"torch"}


def test_only_what_names_no_device_converts(monkeypatch):
    class Model:
        device = property(lambda self: torch.device("meta"))

    model = Model()
    other = torch.ones(1)
    on_host = torch.ones(2)
    half = torch.float16
    for copies, expected in (
        (lambda: on_host.to(model.device, dtype=half), "copy"),
        (lambda: on_host.to(device=model.device, dtype=half), "copy"),
        (lambda: on_host.to(other), "copy"),
        (lambda: on_host.to(half, non_blocking=True), "torch"),
    ):
        assert kinds_at_calls("to", copies, monkeypatch) == {expected}


SENDS = "def send(tensor, *args, **kwargs):\n    return tensor.to(*args, **kwargs)\n"


def test_a_package_that_hands_on_its_arguments_copies_or_converts(monkeypatch):
    send = packaged("features", SENDS)["send"]
    lines = SENDS.splitlines(keepends=True)
    file = send.__code__.co_filename
    monkeypatch.setitem(linecache.cache, file, (len(SENDS), None, lines, file))
    on_host = torch.ones(2)
    for work, expected in (
        (lambda: send(on_host, torch.device("meta"), torch.float16), "copy"),
        (lambda: send(on_host, device="meta"), "copy"),
        (lambda: send(on_host, on_host), "copy"),
        (lambda: send(on_host, torch.float16), "library"),
        (lambda: send(on_host, "cpu"), "library"),
    ):
        assert kinds_at_calls("to", work, monkeypatch) == {expected}


class Picture(torch.Tensor):
    pass


def test_what_is_asked_of_a_subclass_of_tensor_is_asked_of_torch(monkeypatch):
    monkeypatch.setattr(named_objects, "locals_of", lambda frame: dict(frame.f_locals))
    on_gpu = torch.ones(1).as_subclass(Picture)
    on_host = torch.ones(1).as_subclass(Picture)
    monkeypatch.setattr(gpu_tensors, "lies_on_gpu", lambda value: value is on_gpu)
    device = torch.device("meta")

    def read():
        on_gpu.item()
        on_host.to(device)

    places = Places(None)
    places.loop = read.__code__

    def note(frame, event, called):
        if event == "c_call" and called.__name__ in ("item", "to"):
            sys.setprofile(None)
            places.number_of(frame)
            sys.setprofile(note)

    sys.setprofile(note)
    try:
        read()
    finally:
        sys.setprofile(None)
    found = {(place.kind, place.call) for place in places.fresh.values()}
    assert found == {("sync", "on_gpu.item()"), ("copy", "on_host.to()")}


def norm_of(weights):
    return sum(weight.grad.norm(2) ** 2 for weight in weights)


def helper_of(note):
    note(sys._getframe())


PACKAGED = """
class Pictures:
    def __init__(self, note, frame_of):
        self.note, self.frame_of = note, frame_of

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.note(self.frame_of())
        return index
"""


def packaged(name, code, folder="/x/site-packages"):
    """Return what `code` defines, as if a package of that name had it."""
    names = {"__name__": name}
    exec(compile(code, f"{folder}/{name}.py", "exec"), names)
    return names


def test_a_packages_items_behind_a_subset_of_torchs_are_the_packages():
    pictures = packaged("pictures", PACKAGED)["Pictures"]

    places = Places(None)
    whole = pictures(places.number_of, lambda: sys._getframe(1))

    def read():
        for _ in DataLoader(torch.utils.data.random_split(whole, [2, 2])[0]):
            pass

    places.loop = read.__code__
    read()
    place = places.fresh[0]
    assert (place.within, place.function) == ("item", "Pictures.__getitem__")
    assert place.file.endswith("pictures.py") and place.kind == "library"


def test_no_source_is_parsed_within_the_programs_own_parsing(monkeypatch):
    monkeypatch.setattr(expressions, "ONE_AT_A_TIME", True)
    assert isinstance(expressions.syntax_of("1 + 1").body[0], ast.Expr)

    class Parses:  # a finalizer may run there, and a signal in it
        def decode(self):
            expressions.syntax_of("1 + 1")

    def parse(source):
        source.decode()

    monkeypatch.setattr(ast, "parse", parse)
    with pytest.raises(SyntaxError):
        ast.parse(Parses())


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_sample_keeps_nothing_of_the_program_alive(one_at_a_time, monkeypatch):
    monkeypatch.setattr(expressions, "ONE_AT_A_TIME", one_at_a_time)

    def step():
        activations = torch.zeros(8)
        gone = weakref.ref(activations)
        Places(None).number_of(sys._getframe())
        return gone

    expressions._parsed.cache_clear()
    gc.collect()
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


PACKAGED_TRAINER = """
import torch


class Model(torch.nn.Module):
    def forward(self, note):
        note()
        return torch.zeros(1)


def evaluate(model, note):
    with torch.no_grad():
        model(note)
"""


def test_a_validation_within_a_packages_loop_is_one():
    trainer = packaged("trainers", PACKAGED_TRAINER)
    model = trainer["Model"]()
    places = Places(None)
    places.framed = True

    def train():
        trainer["evaluate"](model, lambda: places.number_of(sys._getframe(1)))
        model(lambda: places.number_of(sys._getframe(1)))

    places.loop = train.__code__
    train()
    assert [place.kind for place in places.fresh.values()] == ["validation", "forward"]


def test_a_progress_bar_that_waits_for_workers_does_not_log():
    bars = packaged("tqdm", "def bar(batches):\n    yield from batches\n")["bar"]

    def waits(note):
        batches = packaged("torch.utils.data", "def get(note):\n    yield note()\n")["get"]
        next(bars(batches(lambda: note(sys._getframe(1)))))

    assert noted(waits)[0].kind == "loader"
    own = packaged("tqdm", "def draw(note):\n    note()\n")["draw"]
    assert noted(lambda note: own(lambda: note(sys._getframe(1))))[0].kind == "logging"


def test_files_that_were_installed_into_a_folder_of_ones_own_are_a_packages(tmp_path, monkeypatch):
    (tmp_path / "lib" / "tool-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "lib")])
    stack.is_users.cache_clear()
    assert not stack.is_users(str(tmp_path / "lib" / "tool.py"))
    assert stack.is_users(str(tmp_path / "train.py"))
    stack.is_users.cache_clear()


def test_a_closure_and_reading_gradients_are_no_optimizer_of_the_users():
    def closure_of(note):
        weight = torch.zeros(2, requires_grad=True)
        torch.optim.SGD([weight], 0.1).step(lambda: helper_of(note))

    assert noted(closure_of)[0].kind != "update"  # Lightning's whole step is in such a closure
    frame = SimpleNamespace(f_code=norm_of.__code__)
    assert not weight_updates.updates_weights(frame, is_loop=False)

    def residual(x):
        return torch.autograd.grad(x.sum(), x)[0]

    def descend_in_place(weights):
        for weight in weights:
            weight.data.add_(weight.grad, alpha=-0.1)

    told = [
        weight_updates.updates_weights(SimpleNamespace(f_code=each.__code__), is_loop=False)
        for each in (residual, descend, descend_in_place)
    ]
    assert told == [False, True, True]


def test_tensors_on_a_card_do_not_explain_the_hosts_memory():
    kept = [torch.empty(1_000_000, device="meta")] * 40
    assert growth._bytes_of(kept) < 1e6
    assert growth._bytes_of([torch.empty(1_000_000)] * 40) == 160_000_000


def test_an_object_of_the_users_is_not_asked_where_it_is():
    class Asked:
        @property
        def device(self):
            raise AssertionError("the user's code ran")

    assert growth._bytes_of([Asked()]) > 0


def test_samples_within_another_loader_of_the_body_are_its_own_with_the_line_that_reads_it(
    tmp_path,
):
    def evaluate(note):
        for _ in DataLoader(Noted(note)):
            pass

    place = noted(evaluate)[0]
    line = evaluate.__code__.co_firstlineno + 1
    assert place.reads == (__file__, line, evaluate.__qualname__.replace("<locals>.", ""))
    lines = sampled(tmp_path, place, pid=0)
    assert [*lines.kinds("body")] == lines.kind.tolist() == ["loader"]
    loop = SimpleNamespace(lines=lines, spent=np.ones(40))
    evidence = Evidence("cpu", compute_share=0.9, body={"loader": 0.5}, loop=loop)
    found = body_rules.another_loader(evidence)
    assert (found.name, found.cause, found.lost_share) == ("host", "loader", 0.45)
    assert f"evaluate() (test_lines.py:{line})" in wording.why(found)
    assert "num_workers=2" in found.remedies[0].text
    assert noted(lambda note: note(sys._getframe()))[0].reads is None


def test_an_optimizer_that_somebody_wrote_is_one_and_may_be_rewritten(tmp_path, monkeypatch):
    weight = torch.zeros(2)
    weight.grad = torch.ones(2)
    own = noted(lambda note: Sgd([torch.nn.Parameter(weight)], {"note": note}).step())[0]
    function = noted(lambda note: descend([weight], note))[0]
    assert (own.kind, own.function) == ("update", "Sgd.step")
    assert (function.kind, function.function) == ("update", "descend")
    assert kind_names.kind_of("torch.nn.parameter") == "torch"
    monkeypatch.setattr(sampled_stacks, "FEWEST", 1)
    lines = sampled(tmp_path, own, pid=0)
    assert lines.body == {"optimizer": 1.0}
    evidence = Evidence("cpu", compute_share=0.9, loop=SimpleNamespace(lines=lines))
    found = body_rules.own_optimizer(evidence)
    assert (found.name, found.cause) == ("host", "own_optimizer")
    assert "Sgd.step()" in wording.why(found)
    group = {"params": [torch.nn.Parameter(torch.zeros(2))], "momentum": 0.9, "lr": 1.0}
    group["params"][0].grad = torch.ones(2)
    state = {group["params"][0]: {"average": torch.zeros(2)}}
    step = "with torch.no_grad():\n" + textwrap.indent(found.remedies[0].code, "    ")
    exec(step, {"torch": torch, "group": group, "self": SimpleNamespace(state=state)})
    assert group["params"][0].tolist() == pytest.approx([-0.1, -0.1])


# -- scripts that know nothing of it ---------------------------------------------------------------

SCRIPT = """
import signal, sys, time
import torch
torch.set_num_threads(1)
from torch.utils.data import DataLoader, TensorDataset
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
def log(loss):
    time.sleep(0.01)
def main():
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(800, 8)), 4)
    for (x,) in loader:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        log(loss)
    signal.raise_signal(signal.SIGUSR1)
    print(__name__, sys.argv[1:], sys.stdin.read(), len(seen), sys.flags.interactive)
    sys.exit(7)
if __name__ == "__main__":
    main()
"""


def watch_script(tmp_path, text, *arguments, **how):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    env = {**os.environ, "LABKIT_HOME": str(tmp_path / "home")}
    return watched([sys.executable, path, *arguments], env=env, **how)


def host_of(found):
    """Return what is found of the loop's body: beside other programs the verdict is withheld."""
    return next(each for each in found["findings"] if each["name"] == "host")


@SLOW
@posix_signals
def test_a_script_is_watched_from_inside_and_is_what_it_is_without(tmp_path):
    done, found = watch_script(tmp_path, SCRIPT, "--epochs", "1", input="typed")
    assert done.returncode == found["exit_code"] == 7
    assert "__main__ ['--epochs', '1'] typed 1 0" in done.stderr
    first = host_of(found)["lines"][0]
    assert (first["function"], first["line"]) == ("log", 9) and first["share"] > 0.7
    assert (found["seen"], found["run"]["steps"]) == ("inside", 200)
    assert "host" in {each.name for each in lk.load(found["record"]).diagnose().findings}


@SLOW
@posix_signals
def test_a_traceback_an_abrupt_end_and_a_loop_without_a_loader(tmp_path):
    plain = "import torch\nnet = torch.nn.Linear(8, 8)\no = torch.optim.SGD(net.parameters(), 1.)\n"
    loop = "for _ in range(60):\n    net(torch.randn(4, 8)).sum().backward(); o.step()\n"
    done, found = watch_script(tmp_path, f"{plain}{loop}raise KeyError('lost')")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'lost'")
    assert "labkit" not in done.stderr  # in the traceback
    assert found["seen"] == "inside" and found["run"]["steps"] > 50
    abrupt = f"{plain}{loop}import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done, found = watch_script(tmp_path, abrupt)
    assert done.returncode == found["exit_code"] == 128 + signal.SIGKILL


ENDLESS = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
class Endless(DataLoader):  # as Ultralytics' own: it never calls the __iter__ of DataLoader
    kept = None
    def __iter__(self):
        self.kept = self.kept or self._get_iterator()
        for _ in range(60):
            yield next(self.kept)
def train(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    never_asked = enumerate(loader)
    for i, (x,) in enumerate(loader):
        net(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.03)
train(torch.nn.Linear(8, 1), Endless(TensorDataset(torch.randn(800, 8)), 4))
"""


@SLOW
def test_a_loader_that_iterates_in_its_own_way_is_seen_and_sampled(tmp_path):
    _, found = watch_script(tmp_path, ENDLESS)
    assert (found["seen"], found["run"]["steps"]) == ("inside", 60)
    assert "time.sleep()" in host_of(found)["evidence"], found


FRAMEWORK = """
import time
class Items:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return prepared(index)
def prepared(index):
    time.sleep(0.002)
    return float(index)
class Learner:
    def fit(self, loader):
        for x in loader:
            self.one_batch(x)
    def one_batch(self, x):
        x.double().mean()
"""


@SLOW
def test_lines_of_a_loop_that_a_package_runs_are_the_packages(tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "framework.py").write_text(FRAMEWORK)
    script = "import sys\nsys.path.insert(0, sys.path[0] + '/site-packages')\nimport framework\n"
    script += "from torch.utils.data import DataLoader\n"
    script += "framework.Learner().fit(DataLoader(framework.Items(), 4))"
    _, found = watch_script(tmp_path, script)
    first = found["findings"][0]
    assert (first["name"], first["cause"]) == ("input", "item"), found
    assert "`time.sleep()` in prepared() (framework.py:9)" in first["evidence"], first


# -- two runs compared -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, after, code, slower",
    [("workers-6", "workers-2", 1, "wait"), ("workers-2", "workers-2", 0, None)],
)
def test_trace_fails_where_a_step_got_slower_and_says_which_part(
    before, after, code, slower, capsys
):
    files = [str(RECORDS / f"{name}.jsonl.gz") for name in (before, after)]
    assert main(["trace", "--json", "--fail-if-slower", "5%", *files]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] is bool(code) and (slower is None or slower in found["slower"])
    assert main(["trace", *files]) == 0
    assert ("slower beyond the noise" in capsys.readouterr().out) is bool(code)


def test_a_comparison_of_runs_draws_the_earlier_one_above_the_later_on_one_time_scale():
    slow = lk.recorded("workers-0")
    fast = lk.recorded("workers-6")
    earlier, later, _ = fast.compare(slow).plot().axes
    assert earlier.get_xlim() == later.get_xlim()
    assert earlier.get_title(loc="left").startswith("before")


def test_trace_compares_two_runs_and_says_so_of_one_or_of_what_is_no_run(capsys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"event":"spec","version":1,"run":"r","measure":"f","pipeline":{}}\n')
    run = str(RECORDS / "workers-2.jsonl.gz")
    assert main(["trace", run, str(rows)]) == main(["trace", run]) == 2
    said = capsys.readouterr().err
    assert "is no training run" in said and "is a saved run: diagnose it" in said
