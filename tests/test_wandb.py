"""W&B logging happens afterwards, in a process of its own, offline and without a key.

Without a key, unreachable or hanging: the run has ended, and nothing waits.
"""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
from helpers import processes_of
from planted import wait_until

import labkit as lk
from labkit.view import wandb_log

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")

KEY = "0123456789abcdef0123456789abcdef01234567"  # of the right form, and nobody's


@pytest.mark.parametrize(
    "wandb, why",
    [
        ("cloud", "mode 'cloud'"),
        ({"key": "secret"}, "project, mode and name"),
        ("online", "WANDB_API_KEY.*offline"),
    ],
)
def test_a_wrong_setting_or_a_missing_key_is_refused_before_anything_runs(wandb, why, tiny):
    with pytest.raises(ValueError, match=why):
        lk.run(tiny, wandb=wandb)


@pytest.mark.slow
def test_an_offline_run_is_written_beside_the_run_without_account(tiny, monkeypatch):
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere/socket")  # a session of the kernel's own
    run = lk.run(tiny, wandb=True)
    assert run.outcome == "finished"
    wait_until(lambda: list(run.path.glob("wandb/offline-run-*/*.wandb")), 60)


@pytest.mark.slow
def test_a_server_that_does_not_answer_costs_only_the_process_that_logs(
    finished, tmp_path, monkeypatch
):
    """The process that logs gives up after its patience, leaves no process, and says why."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert KEY not in " ".join(wandb_log.command("online"))
    settings = json.dumps({"project": "p", "mode": "online"})
    code = "import labkit.view.wandb_log as log\nlog.PATIENCE_S = 4\n"
    code += f"log.main({str(finished.path)!r}, {settings!r})"
    with socket.socket() as listening:  # takes every connection and never answers
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        env = {"WANDB_BASE_URL": url, "LABKIT_LOGS": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
        )
    assert done.returncode != 0
    assert "W&B" in done.stderr and KEY not in done.stderr + done.stdout
    wait_until(lambda: not processes_of(tmp_path))
