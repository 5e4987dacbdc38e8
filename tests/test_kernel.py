"""In a real Jupyter kernel: an interrupt stops the run, and the kernel's end takes it along."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from conftest import processes_of
from jupyter_client import KernelManager
from planted import ALL, no_tools_in, wait_until

from labkit import load

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

START = "import labkit as lk; lk.run(lk.Pipeline(num_workers=2, steps=100_000, seconds=60))"
START_AND_GO_ON = START[:-1] + ", wait=False)"
NEXT_RUN = (
    "import labkit as lk\n"
    "run = lk.run(lk.Pipeline(dataset='sleep', prep_ms=1, model='mlp', steps=20, xray=False))\n"
    "assert run.outcome == 'finished', run.error\n"
    "from labkit.process import launcher; assert launcher._standby"
)
ENDS = {  # how a kernel ends: what it was doing, and what ends it
    "restart": (START, lambda manager, client: manager.restart_kernel(now=True)),
    "SIGKILL": (START, lambda manager, client: manager.provisioner.process.send_signal(9)),
    "os._exit": (START_AND_GO_ON, lambda manager, client: client.execute("import os; os._exit(3)")),
    "shutdown": (START_AND_GO_ON, lambda manager, client: client.shutdown()),
}


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


def runs():
    return set((Path(os.environ["LABKIT_HOME"]) / "runs").glob("*"))


def started(client, code, before):
    """Execute `code`; return the message's id and the folder of its run, once that has steps."""
    asked = client.execute(code)

    def stepped():
        for log in (folder / "events.jsonl" for folder in runs() - before):
            if log.exists() and log.read_text().count('"event":"step"') > 5:
                return log.parent
        return None

    wait_until(stepped)
    return asked, stepped()


def test_an_interrupt_stops_the_run_and_the_kernel_answers_afterwards():
    before = runs()
    with kernel() as (manager, client):
        asked, folder = started(client, START, before)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        while reply["parent_header"]["msg_id"] != asked:
            reply = client.get_shell_msg(timeout=30)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        wait_until(lambda: not processes_of(folder), 2)
        sums = "assert 1 + 1 == 2 and lk.run.last.outcome == 'stopped' and lk.run.last.steps > 5"
        status = "aborted"
        while status == "aborted":  # for a tenth of a second after an error Jupyter refuses work
            status = client.execute_interactive(sums, timeout=30)["content"]["status"]
        assert status == "ok"


@pytest.mark.parametrize("how", ENDS if ALL else ["restart"])
def test_a_kernel_that_ends_takes_its_run_along_and_the_next_one_works(how):
    before, (start, end) = runs(), ENDS[how]
    with kernel() as (manager, client):
        _, folder = started(client, start, before)
        end(manager, client)
        wait_until(lambda: not processes_of(folder), 2)
        run = load(folder)
        assert run.outcome == "stopped" and run.steps > 5
        assert [step["i"] for step in run.steps_since(0)] == list(range(run.steps))
        no_tools_in(folder)
        if how != "restart":
            manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        assert client.execute_interactive(NEXT_RUN, timeout=60)["content"]["status"] == "ok"
