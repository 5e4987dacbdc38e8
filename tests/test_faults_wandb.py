"""Weights & Biases without a key, unreachable, hanging: the run has ended, and nothing waits."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

import labkit as lk
from labkit.show import wandb_log

pytest.importorskip("wandb")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

KEY = "0123456789abcdef0123456789abcdef01234567"  # of the right form, and nobody's
PATIENCE_S = 4


def test_online_without_a_key_is_refused_before_anything_runs(tiny, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ValueError, match="WANDB_API_KEY.*offline"):
        lk.run(tiny, wandb="online")
    with pytest.raises(ValueError, match="WANDB_API_KEY"):
        lk.run(tiny, wandb={"mode": "online", "project": "p"})


@pytest.fixture
def server():
    """A server that takes every connection and never answers."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.close()


@pytest.mark.parametrize("state", ["unreachable", "hanging"])
def test_a_server_that_does_not_answer_costs_only_the_process_that_logs(
    state, finished, server, tmp_path
):
    """The process that logs gives up after its patience, leaves no process, and says why."""
    url = server if state == "hanging" else "http://127.0.0.1:9"
    settings = json.dumps({"project": "p", "mode": "online"})
    code = (
        "import labkit.show.wandb_log as log, sys\n"
        f"log.PATIENCE_S = {PATIENCE_S}\n"
        f"log.main({str(finished.path)!r}, {settings!r})"
    )
    env = os.environ | {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": url, "WANDB_DIR": str(tmp_path)}
    env |= {"LABKIT_LOGS": str(tmp_path)}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=60, start_new_session=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert time.monotonic() - start < PATIENCE_S + 20  # importing wandb included
    assert "W&B" in done.stderr, done.stderr[-500:]
    assert KEY not in done.stderr + done.stdout
    time.sleep(0.5)
    assert not with_variable(f"LABKIT_LOGS={tmp_path}")
    assert finished.outcome == "finished"


def with_variable(text):
    """The pids of the processes that have `text` in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = open(f"/proc/{name}/environ", "rb").read().split(b"\0")
        except OSError:
            continue
        if text.encode() in environment:
            found.append(int(name))
    return found


def test_the_command_that_logs_holds_no_key(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert KEY not in " ".join(wandb_log.command("online"))
