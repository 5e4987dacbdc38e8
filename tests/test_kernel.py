"""In a real Jupyter kernel: an interrupt stops the run."""

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest
from file_kernels import FileKernelManager
from helpers import processes_of
from planted import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SHORT = "lk.run(lk.Pipeline(dataset='sleep', prep_ms=1, model='mlp', steps=20, xray=False))"
BLOCKED = "run = lk.run(lk.Pipeline(num_workers=2, steps=100_000, seconds=60))"
BEGUN = f"{BLOCKED[:-1]}, wait=False)"
# A bench that does not answer is given a second, so that later presses find it being stopped
STUBBORN = """
from functools import partial
from labkit.view import running
running.launch = partial(running.launch, fault="planted:plant:ignores_stop")
"""


@contextlib.contextmanager
def kernel():
    """A kernel and its client."""
    manager = FileKernelManager(kernel_name="python3")
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
        logs = [folder / "events.jsonl" for folder in runs() - before]
        known = [log for log in logs if log.exists()]
        return [log.parent for log in known if log.read_text().count('"event":"step"') > 3]

    wait_until(stepped)
    return asked, stepped()[0]


def answer(client, asked):
    """Wait for the reply to a message; return its content, and what was printed meanwhile."""
    said = ""
    while (message := client.get_iopub_msg(timeout=30))["content"] != {"execution_state": "idle"}:
        said += message["content"].get("text", "")
    while (reply := client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != asked:
        pass
    return reply["content"], said


@pytest.mark.parametrize(
    "begun, code, presses, bench",
    [
        ("", BLOCKED, 1, ""),
        (BEGUN, "run.wait()", 2, STUBBORN),
    ],
)
def test_an_interrupted_cell_has_the_stopped_run_assigned_and_one_line(begun, code, presses, bench):
    before = runs()
    with kernel() as (manager, client):
        client.execute_interactive(f"import labkit as lk\n{bench}\n{begun}", timeout=60)
        asked, folder = started(client, code, before)
        time.sleep(0.5)  # the bench may be ahead of the cell, which has to wait by now
        for _ in range(presses):
            manager.interrupt_kernel()
            time.sleep(0.05)
        reply, said = answer(client, asked)
        assert reply["status"] == "ok", reply
        assert said.startswith("stopped: ") and said.count("\n") == 1
        wait_until(lambda: not processes_of(folder))
        check = "assert run.outcome == 'stopped' and run is lk.run.last and run.steps > 3"
        assert client.execute_interactive(check, timeout=30)["content"]["status"] == "ok"


def test_an_interrupt_at_the_start_or_at_the_end_leaves_no_process():
    before = runs()

    def left():
        return [folder for folder in runs() - before if processes_of(folder)]

    with kernel() as (manager, client):
        client.execute_interactive(f"import labkit as lk; {SHORT}", timeout=60)
        for delay_s in [0.0, 0.2, 0.8]:
            client.execute(SHORT)
            time.sleep(delay_s)
            manager.interrupt_kernel()  # just after a cell it costs the kernel the cell's reply
            while client.execute_interactive("0", timeout=60)["content"]["status"] != "ok":
                pass  # for a tenth of a second after an error Jupyter refuses work
            wait_until(lambda: not [f for f in left() if (f / "events.jsonl").exists()])
        assert len(left()) <= 1  # a standby, which has no log
