"""The lines that time goes to: of known loops, of scripts from a terminal, and what `diff` says."""

import ctypes
import gc
import gzip
import json
import linecache
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import script_in, watched
from played_gpu import CPU, GPU, MS, load, watched_log
from torch.utils.data import DataLoader

import labkit as lk
from labkit.instruments.batch_contents import Growth, padding_of
from labkit.instruments.stack import Places

pytestmark = pytest.mark.usefixtures("watches_end")
SLOW = pytest.mark.slow
RECORDS = Path(lk.__file__).parent / "records" / "Intel-Xeon-Processor"


def burn():
    for _ in range(50_000):
        pass


def slow_collate(batch):
    time.sleep(0.02)
    return torch.stack(batch)


@SLOW
def test_a_slow_collate_function_is_seen_in_its_line_in_a_worker():
    loader = DataLoader(torch.ones(400), 4, num_workers=1, collate_fn=slow_collate)
    for batch in (watch := lk.watch(loader, live=False)):
        batch.sum()
    assert watch.run.diagnose().bottleneck == "input"
    lines = [(line.function, line.call) for line in watch.run.lines.lines]
    assert ("slow_collate", "time.sleep(0.02)") in lines


GROWS_MS = np.linspace(8.0, 20.0, 300)
SLOWS_MS = np.linspace(8.0, 11.5, 300)  # as on a machine that slows a little
FLAT_MS = np.full(300, 10.0)
UNTIMED = {"event": "clock", "why": "the loop waits for each step"}


def watched_loop(
    folder,
    steps_ms,
    *events,
    machine=CPU,
    work=("optimizer", "optimizer.step()"),
    batch_bytes=None,
    cpu=0.5,
    line_cpu=0.02,
):
    """Return the run of a watched loop that does nothing but `work`, a kind and a call."""
    ends = 1000.0 + np.cumsum(steps_ms)
    rows = [(0, end - ms, end) for end, ms in zip(ends, steps_ms, strict=True)]
    steps = [{"t": (begin, begin, begin, end)} for _, begin, end in rows]
    for step, size in zip(steps, () if batch_bytes is None else batch_bytes, strict=False):
        step["bytes"] = int(size)
    use = {"cpus": 2, "own_cpu": 0.5, "cpu": cpu, "line_cpu": line_cpu}
    read = [{"t_ns": round(end * MS), **use} for end in ends[::25]]
    more = {"knobs": {"num_workers": 0}, "events": events}
    return watched_log(folder, machine, [work], steps, rows, read, **more)


def test_a_stall_is_named_with_its_period_and_its_line(tmp_path):
    steps_ms = np.where(np.arange(300) % 20 == 19, 400.0, 5.0)
    found = watched_loop(tmp_path, steps_ms, work=("wait", "time.sleep(1)")).diagnose().findings[0]
    assert (found.name, found.cause) == ("host", "periodic")
    assert "every 20 steps" in found.evidence
    assert "time.sleep(1)" in [line.call for line in found.lines]


@pytest.mark.parametrize("steps_ms, costs", [(GROWS_MS, True), (SLOWS_MS, False)])
def test_a_variable_that_keeps_graphs_is_a_leak_and_costs_what_later_steps_take_longer(
    steps_ms, costs, tmp_path
):
    assert "drift" not in [
        each.cause for each in watched_loop(tmp_path, steps_ms).diagnose().findings
    ]
    place = {"file": "train.py", "line": 57, "function": "train"}
    losses = {"name": "losses", "before": 32, "after": 300, "graph": True, **place}
    found = watched_loop(tmp_path, steps_ms, {"event": "growth", "found": [losses]}).diagnose()
    [drift] = [each for each in found.findings if each.cause == "drift"]
    assert "`losses` in train() (train.py:57) grew from 32 to 300" in drift.evidence
    assert (drift.lost_share > 0.3) == ("as long as the first" in drift.evidence) == costs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_of_64_bits_are_named_where_the_device_is_the_limit(dtype, tmp_path):
    job = {"event": "job", "pipeline": {"num_workers": 0}, "not_applied": {}}
    job |= {"weights_dtype": dtype, "batch_dtype": dtype}
    found = watched_loop(tmp_path, FLAT_MS, job, UNTIMED, machine=GPU).diagnose().findings[0]
    assert (found.cause == "float64") == ("model.float()" in found.code) == (dtype == "float64")
    assert "Expect" not in found.advice


@pytest.mark.parametrize("mib, bottleneck", [(40, "transfer"), (1, "unsure")])
def test_a_loop_that_stands_at_a_copy_copies_or_waits_for_the_device(mib, bottleneck, tmp_path):
    more = {"batch_bytes": [mib * 2**20] * 300, "work": ("copy", "images.to()")}
    found = watched_loop(tmp_path, FLAT_MS, UNTIMED, machine=GPU, **more).diagnose()
    assert found.bottleneck == bottleneck, found


def h200_trainer(tmp_path, change, **read):
    """Return the run of a Trainer on an H200, with events changed and other readings of the card.

    Each step asks whether the loss is a number, and so waits for it.
    """
    with gzip.open(Path(__file__).with_name("h200_trainer.jsonl.gz"), "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        if event["event"] == "telemetry":
            event |= read
        change(event)
    return load(tmp_path, events)


def test_what_an_h200_certainly_did_bounds_what_the_body_of_its_loop_costs(tmp_path):
    def as_it_was_told_first(event):
        for place in event.get("places", {}).values():
            place[0] = place[0].replace("torch", "library")

    run = h200_trainer(tmp_path, as_it_was_told_first)
    assert run.lines.body["python"] > 0.7 and run.diagnose().bottleneck == "compute"
    unread = h200_trainer(tmp_path, as_it_was_told_first, gpm=None, power_w=None, energy_j=None)
    assert unread.diagnose().bottleneck == "host"  # nothing tells that the device worked


def test_a_watched_loop_without_a_loss_is_not_called_healthy_for_certain(tmp_path):
    found = watched_loop(tmp_path, FLAT_MS).diagnose()
    assert found.findings[0].cause == "the_device_is_the_limit"
    assert found.confidence < 1
    assert "watched loop sees" in found.advice


def test_a_loader_made_anew_continues_its_run_and_another_dataset_has_its_own():
    def epoch(dataset):
        list(watch := lk.watch(DataLoader(dataset, batch_size=4), live=False))
        return watch

    train = torch.zeros(64)
    other = torch.zeros(16)
    passes = [epoch(each) for each in (train, other) * 3]
    assert passes == passes[:2] * 3
    assert [watch.run.steps for watch in passes[:2]] == [48, 12]


@dataclass
class TextBatch:
    labels: torch.Tensor
    tokens: torch.Tensor


def test_padding_of_somebodys_batches_is_told_from_other_whole_numbers():
    text = torch.arange(1, 13).repeat(3, 1)
    text[1, 6:] = text[2, 3:] = 0
    assert padding_of(TextBatch(torch.ones(3), text)) == pytest.approx(15 / 36)
    for other in (torch.randint(0, 2, (16, 40)), torch.randn(4, 12), [1, 2], None):
        assert padding_of(other) is None, other


@pytest.mark.skipif(sys.platform != "linux", reason="stacks are sampled on Linux only")
def test_no_sleep_in_c_code_is_cut_short_and_both_kinds_of_time_are_seen():
    sleep = ctypes.CDLL(None).usleep  # returns -1 where a signal ends it
    answers = []
    for _ in (watch := lk.watch(range(300), live=False)):
        burn()
        answers.append(sleep(2_000))
    assert answers == [0] * 300
    lines = watch.run.lines.lines
    assert "burn" in [line.function for line in lines]
    assert "answers.append(sleep(2_000))" in [line.call for line in lines]


LOOKED_AT_WHILE_FRAMES_GO = """
import gc, sys, threading, time
from labkit.instruments import stack

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


def test_looking_at_a_loop_keeps_none_of_its_variables():
    """A local of 200 MB is freed when the user's function lets go of it."""

    def step():
        activations = torch.zeros(8)
        outputs = torch.zeros(8)
        gone = weakref.ref(activations)
        Growth().look(sys._getframe(), step.__code__)
        Places().number_of(sys._getframe())
        del activations
        assert gone() is None
        return weakref.ref(outputs)

    def step_with_a_snapshot_of_its_own():
        mine = 1
        seen = locals()
        Growth().look(sys._getframe(), step_with_a_snapshot_of_its_own.__code__)
        return seen["mine"] == mine

    gc.collect()
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()
    assert step_with_a_snapshot_of_its_own()


def packaged(name, code):
    """Return what `code` defines, as if a package of that name had it."""
    names = {"__name__": name}
    file = f"/x/site-packages/{name}.py"
    exec(compile(code, file, "exec"), names)
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    return names


# -- scripts that know nothing of it ---------------------------------------------------------------

SCRIPT = """
import signal, sys, time
import torch
torch.set_num_threads(1)
from torch.utils.data import DataLoader, TensorDataset
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
class Endless(DataLoader):  # as Ultralytics' own: it never calls the __iter__ of DataLoader
    kept = None
    def __iter__(self):
        self.kept = self.kept or self._get_iterator()
        for _ in range(100):
            yield next(self.kept)
def log(loss):
    time.sleep(0.03)
def main():
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = Endless(TensorDataset(torch.randn(800, 8)), 4)
    never_asked = enumerate(loader)
    for i, (x,) in enumerate(loader):
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
    return watched([sys.executable, script_in(tmp_path, text), *arguments], **how)


@SLOW
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_script_is_watched_from_inside_and_is_what_it_is_without(tmp_path):
    done, found = watch_script(tmp_path, SCRIPT, "--epochs", "1", input="typed")
    assert done.returncode == 7
    assert "__main__ ['--epochs', '1'] typed 1 0" in done.stderr
    # of 100 steps: when the body of the last is over, the loader's own iterator does not tell
    assert lk.load(found["record"]).steps == 99
    most = max(found["lines"], key=lambda line: line["share"])
    assert (most["function"], most["line"], most["call"]) == ("log", 15, "time.sleep(0.03)")


@SLOW
def test_a_traceback_and_a_loop_without_a_loader(tmp_path):
    text = (
        "\nimport torch\nnet = torch.nn.Linear(8, 8)\no = torch.optim.SGD(net.parameters(), 1.)\n"
    )
    text += "for _ in range(60):\n    net(torch.randn(4, 8)).sum().backward(); o.step()\n"
    done, found = watch_script(tmp_path, f"{text}raise KeyError('lost')")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'lost'")
    assert "labkit" not in done.stderr  # in the traceback
    assert found["record"] is None and "failed" in found["text"]


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


def test_lines_of_a_loop_that_a_package_runs_are_the_packages():
    framework = packaged("framework", FRAMEWORK)
    loader = DataLoader(framework["Items"](), 4)
    framework["Learner"]().fit(watch := lk.watch(loader, live=False))
    first = watch.run.diagnose().findings[0]
    assert (first.name, first.cause) == ("input", "item")
    assert "`time.sleep(0.002)` in prepared() (framework.py:9)" in first.evidence


# -- two runs compared -----------------------------------------------------------------------------


def test_a_comparison_of_runs_draws_the_earlier_one_above_the_later_on_one_time_scale():
    compared = lk.recorded("workers-6").compare(lk.recorded("workers-0"))
    earlier, later, *_ = compared.plot().axes
    assert np.ptp(earlier.get_xlim()) == pytest.approx(np.ptp(later.get_xlim()))
    assert earlier.get_title(loc="left").startswith("before")


# -- other programs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work, cpu, line_cpu, first",
    [
        (("forward", "model()"), 1.0, 0.4, "unsure"),
        (("python", "json.dumps()"), 1.0, 0.4, "host"),
        (("forward", "model()"), 1.0, 0.02, "compute"),
    ],
)
def test_other_programs_that_have_the_cores_come_first_and_a_line_stays_what_it_is(
    work, cpu, line_cpu, first, tmp_path
):
    found = watched_loop(tmp_path, FLAT_MS, work=work, cpu=cpu, line_cpu=line_cpu)
    found = found.diagnose()
    what, why, do = str(found).split("\n")[:3]
    assert found.bottleneck == first
    assert ("Other programs used 1.0 of 2 cores meanwhile" in what) == (cpu == 1.0)
    if first == "unsure":
        had = "44% of the time in which this program had work, others had its cores"
        assert (had in why) == (line_cpu is not None)
        assert do.startswith("Do: Stop the other work and run again.")


# -- what is kept --------------------------------------------------------


def grown_in(loop):
    """Return what is found to grow in a loop, which has itself looked at by what it is given."""
    grown = Growth()

    def look():
        grown.look(sys._getframe(1), loop.__code__)
        return {each["name"] for each in grown.found}

    loop(look)
    return {each["name"]: each for each in grown.found}


def test_graphs_kept_in_a_list_and_in_a_sum_are_named_and_what_is_cut_or_made_anew_is_not():
    def loop(look):
        kept = []
        weight = torch.ones(3, requires_grad=True)
        best = (weight * 2).sum()
        total = running = 0.0
        for step in range(60):
            loss = (weight * step).sum()
            kept.append(loss)
            total += loss
            running += loss.item()
            micro = 0.0
            for _ in range(2):
                micro += (weight * step).sum()
            if step % 10 == 9:
                look()
        return best, micro, running, total

    found = grown_in(loop)
    assert found.keys() == {"kept", "total"}
