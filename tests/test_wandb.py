"""W&B logging happens afterwards, in a process of its own, offline and without a key.

Without a key, unreachable or hanging: the run has ended, and nothing waits.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import labkit as lk
from labkit.show import wandb_log

pytest.importorskip("wandb")

KEY = "0123456789abcdef0123456789abcdef01234567"  # of the right form, and nobody's
PATIENCE_S = 4


@pytest.mark.parametrize(
    ("wandb", "why"),
    [
        ("cloud", "mode 'cloud'"),
        ({"key": "secret"}, "project, mode and name"),
        ("online", "WANDB_API_KEY.*offline"),
        ({"mode": "online", "project": "p"}, "WANDB_API_KEY"),
    ],
)
def test_a_wrong_setting_or_a_missing_key_is_refused_before_anything_runs(
    wandb, why, tiny, monkeypatch
):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ValueError, match=why):
        lk.run(tiny, wandb=wandb)


def test_the_command_that_logs_holds_no_key(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert KEY not in " ".join(wandb_log.command("online"))


@pytest.mark.slow
def test_an_offline_run_is_written_beside_the_run_without_account(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere/socket")  # a session of the kernel's own
    run = lk.run(tiny, wandb=True)
    assert run.outcome == "finished"
    deadline = time.monotonic() + 60
    while not list(run.path.glob("wandb/offline-run-*/*.wandb")):
        assert time.monotonic() < deadline, (run.path / "after.log").read_text()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("state", ["unreachable", "hanging"])
def test_a_server_that_does_not_answer_costs_only_the_process_that_logs(state, finished, tmp_path):
    """The process that logs gives up after its patience, leaves no process, and says why."""
    with socket.socket() as listening:  # takes every connection and never answers
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        port = listening.getsockname()[1] if state == "hanging" else 9
        code = (
            "import labkit.show.wandb_log as log, sys\n"
            f"log.PATIENCE_S = {PATIENCE_S}\n"
            f"log.main({str(finished.path)!r}, {json.dumps({'project': 'p', 'mode': 'online'})!r})"
        )
        env = os.environ | {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{port}"}
        env |= {"WANDB_DIR": str(tmp_path), "LABKIT_LOGS": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True,
            timeout=60, start_new_session=True,
        )  # fmt: skip
    assert done.returncode != 0
    assert "W&B" in done.stderr and KEY not in done.stderr + done.stdout
    time.sleep(0.5)
    assert not [p for p in Path("/proc").glob("[0-9]*") if f"LABKIT_LOGS={tmp_path}" in environ(p)]
    assert finished.outcome == "finished"


def environ(process):
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
