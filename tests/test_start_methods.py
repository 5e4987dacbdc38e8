"""What labkit promises on every system, under each start method: `maintain/platforms/check.py`.

Spawn is the way of macOS, forkserver that of Python 3.14 on Linux.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = ROOT / "maintain" / "platforms" / "check.py"
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def check(*arguments):
    command = [sys.executable, CHECK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_dataset_of_a_cell_is_measured_and_its_watched_loop_is_told_a_remedy_under_forkserver():
    check("--start", "forkserver", "measure", "watch")


@pytest.mark.slow
def test_a_run_with_workers_stops_without_the_names_that_a_mac_lacks():
    check("--start", "spawn", "--like-a-mac", "stop")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_step_works_under_each_start_method(method):
    check("--start", method)


@pytest.mark.nightly
@pytest.mark.slow
def test_runs_measure_and_leave_nobody_without_the_names_that_a_mac_lacks():
    check("--start", "spawn", "--like-a-mac", "runs", "measure", "kill")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="takes another user's id")
def test_a_user_id_without_a_name_or_a_home_measures_on_one_core():
    script = CHECK.with_name("nobody.sh")
    command = ["bash", script, "machine", "runs", "kill"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
