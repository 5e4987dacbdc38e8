"""What `maintain/` promises: steps on every system, slices for a lent card, labelled faults."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import faultset
import pytest
from faultset import BASES, FAULTS, run_set

from labkit.diagnosis.findings import BOTTLENECKS
from labkit.results.hardware import Machine

ROOT = Path(__file__).parents[1]
CHECK = ROOT / "maintain" / "platforms" / "check.py"
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
SLICES = sorted((ROOT / "maintain" / "first_gpu").glob("[0-9q]*.sh"))
CPU = BASES["cpu"] | {"precision": "fp32", "depth": 1}, Machine(kind="cpu")


# -- under each start method: macOS and Windows spawn, Python 3.14 has a forkserver ----------------


def check(*arguments, command=(sys.executable, CHECK)):
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_step_works_under_each_start_method(method):
    check("--start", method)


@pytest.mark.nightly
def test_runs_measure_and_stop_and_leave_nobody_without_the_names_that_windows_lacks():
    check("--start", "spawn", "--without-posix", "stop", "runs", "measure", "kill")


@pytest.mark.nightly
@pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="takes another user's id")
def test_a_user_id_without_a_name_or_a_home_measures_on_one_core():
    check("machine", "runs", "kill", command=("bash", CHECK.with_name("nobody.sh")))


# -- for a lent card, tried here as `--dry-run` does -----------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="scripts for Linux")
@pytest.mark.nightly
@pytest.mark.parametrize("script", SLICES, ids=lambda path: path.stem)
def test_each_slice_runs_without_a_card_and_leaves_its_archive(script, tmp_path):
    env = os.environ | {"PYTHON": sys.executable, "LABKIT_HOME": str(tmp_path / "home")}
    command = ["bash", script, "--dry-run", tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / f"{script.stem}.tgz").stat().st_size


def test_the_slices_have_every_notebook():
    asked = "".join(script.read_text() for script in SLICES)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f" {notebook.name[:2]}" in asked


# -- the labelled fault set ------------------------------------------------------------------------


def test_the_set_has_every_bottleneck_that_can_be_planted_in_pipelines_that_are_allowed():
    not_planted = {"host", "communication", "straggler", "unsure"}
    assert {fault.expected for fault in FAULTS} == set(BOTTLENECKS) - not_planted
    for kind, fault in ((kind, fault) for kind in BASES for fault in FAULTS):
        here = fault.on(kind)
        assert here.pipeline(1, BASES[kind]).seed == 1
        assert here.plant is None or here.plant in faultset.PLANTS


@pytest.mark.slow
def test_a_fault_is_named_for_real(monkeypatch):
    monkeypatch.setattr(faultset, "base_here", lambda: CPU)
    [fault] = [fault for fault in FAULTS if fault.name == "object building"]
    score = run_set(seeds=1, faults=[fault])
    # On a machine with neighbours a run may get no verdict, but not a wrong one
    assert score.rows and all(wrong["named"] == "unsure" for wrong in score.wrong), score
