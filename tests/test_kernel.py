"""In a real Jupyter kernel: an interrupt stops the run, and the kernel's end takes it along."""

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest
from conftest import processes_of
from jupyter_client import KernelManager

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

START = "import labkit as lk; lk.run(lk.Pipeline(num_workers=2, steps=100_000, seconds=60))"


@contextlib.contextmanager
def kernel():
    """A kernel and its client."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | {"PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def newest_run(after):
    """Wait for a run that was started after `after` (a set of folders) and has done some steps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for folder in set(runs()) - after:
            log = folder / "events.jsonl"
            if log.exists() and log.read_text().count('"event":"step"') > 5:
                return folder
        time.sleep(0.02)
    raise AssertionError("no run started")


def runs():
    return set((Path(os.environ["LABKIT_HOME"]) / "runs").glob("*"))


def until_nothing_runs_in(folder):
    deadline = time.monotonic() + 2
    while processes_of(folder):
        assert time.monotonic() < deadline, processes_of(folder)
        time.sleep(0.01)


def test_an_interrupt_stops_the_run_and_the_kernel_answers_afterwards():
    before = runs()
    with kernel() as (manager, client):
        asked = client.execute(START)
        folder = newest_run(before)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        while reply["parent_header"]["msg_id"] != asked:
            reply = client.get_shell_msg(timeout=30)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        until_nothing_runs_in(folder)
        sums = "assert 1 + 1 == 2 and lk.run.last.outcome == 'stopped' and lk.run.last.steps > 5"
        status = "aborted"
        while status == "aborted":  # for a tenth of a second after an error Jupyter refuses work
            status = client.execute_interactive(sums, timeout=30)["content"]["status"]
        assert status == "ok"


def test_restarting_the_kernel_ends_its_run():
    before = runs()
    with kernel() as (manager, client):
        client.execute(START)
        folder = newest_run(before)
        manager.restart_kernel(now=True)
        until_nothing_runs_in(folder)
