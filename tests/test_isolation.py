"""A run that is killed, stopped or broken leaves nothing behind and loses nothing it did."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import processes_of, torch_segments

from labkit import Pipeline, load
from labkit.bench.step_log import SLOT
from labkit.lab import processes
from labkit.lab.launcher import launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LONG = Pipeline(num_workers=2, steps=100_000, seconds=60)


def started(pipeline=LONG, steps=15, **more):
    """Launch a run and wait until it has done some steps."""
    run = launch(pipeline, **more)
    until(lambda: run.running and run.steps >= steps)
    return run


def until(condition, seconds=60.0):
    """Wait until `condition()` is true; fail when it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def bench_of(run):
    return next(iter(processes.logged_bench(run.path)))


def steps_in_ring(run):
    """How many steps the bench has finished, whether or not they are in its log yet."""
    ring = run.path / "steps.ring"
    data = ring.read_bytes() if ring.exists() else b""
    slots = [SLOT.unpack_from(data, at) for at in range(0, len(data) - SLOT.size + 1, SLOT.size)]
    return max((slot[4] for slot in slots if slot[4] == slot[-1]), default=0)


def assert_nothing_left(run, within=1.0, segments=frozenset()):
    """All processes and segments are gone within a second, and the steps have no gap."""
    until(lambda: not processes_of(run.path), within + 0.5)
    assert torch_segments() <= segments
    run.refresh()
    assert [step["i"] for step in run._steps] == list(range(run.steps))


@pytest.mark.parametrize("victim", ["bench", "worker", "supervisor"])
def test_killing_any_process_of_a_run_ends_it_as_failed_and_leaves_nothing(victim, tiny):
    before = torch_segments()
    run = started()
    pid = {
        "bench": lambda: bench_of(run),
        "worker": lambda: min(processes.logged_workers(run.path)),
        "supervisor": lambda: run._process.process.pid,
    }[victim]()
    done = run.refresh().steps
    os.kill(pid, signal.SIGKILL)
    run.wait()
    assert run.outcome == "failed"
    assert run.steps >= done
    assert re.search({"bench": "SIGKILL", "worker": "worker", "supervisor": "supervisor"}[victim],
                     run.error)  # fmt: skip
    assert_nothing_left(run, segments=before)
    assert launch(tiny).wait().outcome == "finished"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_that_dies_takes_its_run_along(how, tmp_path):
    before = torch_segments()
    code = (
        "import labkit as lk, sys, time\n"
        "run = lk.run(lk.Pipeline(num_workers=2, steps=100_000, seconds=60), wait=False)\n"
        "while run.steps < 15: run.refresh(); time.sleep(0.01)\n"
        "print(run.path, flush=True); time.sleep(60)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    path = kernel.stdout.readline().strip()
    kernel.send_signal(how)
    kernel.wait()
    until(lambda: not processes_of(path), 1.5)
    assert torch_segments() <= before
    run = load(path)
    assert run.outcome == "stopped" and run.steps >= 15
    assert [step["i"] for step in run._steps] == list(range(run.steps))


def test_steps_finished_before_a_kill_are_in_the_record():
    run = started(Pipeline(dataset="array", model="mlp", width=8, depth=1, steps=10**6, seconds=60))
    os.kill(bench_of(run), signal.SIGSTOP)  # hold it still between two writes of its log
    finished = steps_in_ring(run)
    os.kill(bench_of(run), signal.SIGKILL)
    run.wait()
    assert run.steps == finished
    assert not (run.path / "steps.ring").exists()


def test_stop_asks_first_and_keeps_what_was_done():
    run = started()
    run.stop()
    assert run.outcome == "stopped" and run.error is None
    assert run._last["end"]["code"] == 130  # it left by itself
    assert_nothing_left(run)


def test_stop_ends_a_bench_that_does_not_answer():
    run = launch(LONG, fault="bench_hangs")
    until(lambda: steps_in_ring(run) >= 5)
    time.sleep(0.5)  # into the step that hangs with the GIL held
    run.stop()
    assert run.outcome == "stopped" and run.steps == 5
    assert run._last["end"]["code"] == -signal.SIGKILL
    assert_nothing_left(run)


def test_stop_during_start_up_works():
    run = launch(LONG)
    assert run.stop().outcome == "stopped"
    assert_nothing_left(run)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dataset_raises", "^ValueError: planted: this sample cannot be read"),
        ("step_raises", "^ValueError: planted"),
        ("worker_dies", "worker .*Remedy: .*num_workers"),
        ("worker_segfaults", "worker"),
        ("allocation_fails", "^RuntimeError: .*allocate.*Remedy: lower batch_size"),
        ("bench_segfaults", "SIGSEGV.*Remedy"),
        ("bench_dies", "SIGKILL.*Remedy"),
    ],
)
def test_a_fault_fails_the_run_with_its_original_reason_first(fault, reason, tiny):
    run = launch(tiny.but(num_workers=2), fault=fault).wait()
    assert run.outcome == "failed"
    assert re.search(reason, run.error), run.error
    assert_nothing_left(run)


def test_a_process_that_tries_to_escape_is_ended_too(tiny):
    run = launch(tiny, fault="escapes").wait()
    assert run.outcome == "finished"
    assert_nothing_left(run)


def test_a_flood_on_stdout_neither_stalls_the_run_nor_fills_the_disk(tiny):
    run = launch(tiny, fault="floods_stdout").wait()
    assert run.outcome == "finished"
    assert (run.path / "bench.stdout").stat().st_size < 2**20


def test_a_second_run_waits_for_the_device_and_says_for_whom(tiny):
    first = started()
    second = launch(tiny)
    until(lambda: second.running and "in use by run" in second.stage["name"])
    assert first.id in second.stage["name"]
    first.stop()
    assert second.wait().outcome == "finished"


def test_the_bench_never_sees_a_key(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret-for-the-test")
    run = started()
    environment = open(f"/proc/{bench_of(run)}/environ", "rb").read()
    run.stop()
    assert b"secret-for-the-test" not in environment
    for file in run.path.iterdir():
        assert b"secret-for-the-test" not in file.read_bytes()
