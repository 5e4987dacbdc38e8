"""A run that is killed or stopped loses nothing it did; `test_faults_run.py` has the faults."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import processes_of, torch_segments

from labkit import Pipeline, load
from labkit.process import family as processes
from labkit.process.step_log import SLOT
from labkit.results.launch import launch

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

LONG = Pipeline(num_workers=2, steps=100_000, seconds=60)


def started(pipeline=LONG, steps=15, **more):
    """Launch a run and wait until it has done some steps."""
    run = launch(pipeline, **more)
    until(lambda: not run.running or run.steps >= steps)
    assert run.running, run.error
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


def test_stop_asks_first_and_the_bench_leaves_by_itself():
    run = started()
    run.stop()
    assert run.outcome == "stopped" and run.error is None
    assert run.event("end")["code"] == 130


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_that_dies_takes_its_run_along(how, tmp_path):
    code = (
        "import labkit as lk, sys, time\n"
        "run = lk.run(lk.Pipeline(num_workers=2, steps=100_000, seconds=60), wait=False)\n"
        "while run.steps < 15: time.sleep(0.01)\n"
        "print(run.path, flush=True); time.sleep(60)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    path = kernel.stdout.readline().strip()
    kernel.send_signal(how)
    kernel.wait()
    until(lambda: not processes_of(path), 1.5)
    workers = processes.logged_workers(path)
    assert len(workers) == 2
    assert not [name for pid in workers for name in torch_segments() if f"_{pid}_" in name]
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


def test_a_second_run_waits_for_the_device_and_says_for_whom(tiny):
    first = started()
    second = launch(tiny)
    until(lambda: second.running and "in use by run" in second.stage["name"])
    assert first.id in second.stage["name"]
    first.stop()
    assert second.wait().outcome == "finished"
