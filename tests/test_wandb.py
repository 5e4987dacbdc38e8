"""W&B logging happens afterwards, in a process of its own, offline and without a key."""

import time

import pytest

import labkit as lk

wandb = pytest.importorskip("wandb")


@pytest.mark.parametrize("kernel", ["without W&B", "with a W&B session of its own"])
def test_an_offline_run_is_written_beside_the_run_without_account(tiny, kernel, monkeypatch):
    if kernel.startswith("with "):
        monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere/socket")
    run = lk.run(tiny, wandb=True)
    assert run.outcome == "finished"
    deadline = time.monotonic() + 60
    while not list(run.path.glob("wandb/offline-run-*/*.wandb")):
        assert time.monotonic() < deadline, (run.path / "after.log").read_text()
        time.sleep(0.1)


def test_a_wrong_setting_is_refused_before_anything_runs(tiny):
    with pytest.raises(ValueError, match="mode 'cloud'"):
        lk.run(tiny, wandb="cloud")
    with pytest.raises(ValueError, match="project, mode and name"):
        lk.run(tiny, wandb={"key": "secret"})
