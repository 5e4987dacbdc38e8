"""What labkit promises on every system, under each start method: `maintain/platforms/check.py`.

Spawn is the way of macOS and Windows, forkserver that of Python 3.14 on Linux.
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


def test_processes_that_append_to_one_log_lose_no_line_even_where_appending_is_two_calls():
    check("--without-posix", "append")


@pytest.mark.nightly
@pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="takes another user's id")
def test_a_user_id_without_a_name_or_a_home_measures_on_one_core():
    check("machine", "runs", "kill", command=("bash", CHECK.with_name("nobody.sh")))
