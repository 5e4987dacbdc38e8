"""What a machine lacks is said, and everything that can work works."""

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.faults

QUICK = ("run", "--json", "--set", "model=mlp", "--set", "steps=20", "--set", "xray=false")


def without_compilers(tmp_path):
    """An environment whose PATH has Python on it and nothing else."""
    return os.environ | {"PATH": str(tmp_path), "CXX": ""}


def test_without_a_compiler_nothing_eager_is_called_compiled(labkit_command, tmp_path):
    done = labkit_command(*QUICK, "--set", "compile=default", env=without_compilers(tmp_path))
    run = json.loads(done.stdout)
    if run["machine"]["kind"] == "gpu":
        pytest.skip("a GPU needs no C++ compiler for this")
    assert run["outcome"] == "finished"
    assert run["pipeline"]["compile"] is None and run["compile_s"] is None
    assert "C++ compiler" in run["not_applied"]["compile"]


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_compilation_is_over_before_the_first_step(labkit_command):
    run = json.loads(labkit_command(*QUICK, "--set", "compile=default").stdout)
    eager = json.loads(labkit_command(*QUICK).stdout)
    assert run["outcome"] == "finished", run["error"]
    assert run["compile_s"] > 0 and run["steps"] == 20
    assert run["loss"] == pytest.approx(eager["loss"], rel=1e-3)  # the same training


def test_a_run_writes_nothing_into_the_folder_it_is_started_from(labkit_command, tmp_path):
    assert labkit_command(*QUICK, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root for a mount")
@pytest.mark.parametrize(
    ("settings", "outcome"),
    [("--set num_workers=4", "finished"), ("--set batch_size=2048 --set image_px=128", "failed")],
)
def test_with_a_small_dev_shm_runs_fit_or_say_why_not(settings, outcome):
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    sleepy = "--set dataset=sleep --set prep_ms=1 --set num_workers=2"
    command = f"{mount} && {sys.executable} -m labkit {' '.join(QUICK)} {sleepy} {settings}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True)
    if not done.stdout:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()[-200:]}")
    run = json.loads(done.stdout)
    assert run["outcome"] == outcome
    if outcome == "failed":
        assert "Remedy: /dev/shm is full" in run["error"]


def test_telemetry_without_a_driver_is_a_gap_and_not_an_error(finished):
    assert finished.telemetry
    if finished.machine.kind == "cpu":
        assert finished.energy_j is None
        assert all(sample.get("gpu") is None for sample in finished.telemetry)


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code = "from labkit.process.folders import home; print(home())"
    env = os.environ | {"LABKIT_HOME": str(blocked)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "labkit-" in done.stdout
