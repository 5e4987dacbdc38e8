"""The script for the first real card, with a Python that pretends: the logic of its stages.

Each stage leaves a log, one that fails stops none, and what has passed is not done again.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NOTEBOOKS = sorted(path.stem for path in (TESTS.parent / "notebooks").glob("*.ipynb"))
REHEARSED = ["machine", "tests", "records", "faults"]
STAGES = [*REHEARSED[:3], *NOTEBOOKS, "faults"]
pytestmark = pytest.mark.skipif(not shutil.which("timeout"), reason="a script for Linux")

STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in *"$FAILING"*) echo "it broke"; exit 3 ;; esac
case "$*" in *"$SLOW"*) sleep 60 ;; esac
echo "device  A card ($DEVICE)"
"""


@pytest.fixture
def start(tmp_path):
    """Start the script with a Python that writes down what it is asked: (result, calls, stages)."""
    stub, out, calls = (tmp_path / name for name in ("python", "out", "calls"))
    stub.write_text(STUB)
    stub.chmod(0o755)

    def go(*options, **settings):
        calls.write_text("")
        usual = {"FAILING": "nothing", "SLOW": "nothing", "DEVICE": "cuda:0"}
        usual |= {"PYTHON": str(stub), "CALLS": str(calls)}
        command = ["bash", TESTS / "first_gpu.sh", *options, out]
        env = os.environ | usual | settings
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        said = (out / "summary.txt").read_text().splitlines() if out.exists() else []
        stages = {line[:28].strip(): line[29:63].strip() for line in said}
        return done, calls.read_text().splitlines(), stages

    return go


def test_a_failing_stage_leaves_its_log_and_is_all_that_is_done_again(start, tmp_path):
    done, _, stages = start("--dry-run", DEVICE="cpu")  # counts for nothing on a card
    assert done.returncode == 0 and stages == dict.fromkeys(REHEARSED, "passed")
    done, calls, stages = start(FAILING="not fault_set")
    assert done.returncode == 1 and len(calls) == len(STAGES), done.stderr
    assert stages == dict.fromkeys(STAGES, "passed") | {"tests": "FAILED, tests.log"}
    assert "it broke" in (tmp_path / "out" / "tests.log").read_text()
    done, calls, _ = start()
    assert done.returncode == 0 and len(calls) == 1 and "test_gpu.py" in calls[0]
    done, calls, stages = start()
    assert done.returncode == 0 and not calls
    assert stages == dict.fromkeys(STAGES, "passed before")


def test_what_takes_too_long_is_stopped_and_what_is_left_is_not_begun(start):
    done, calls, stages = start(SLOW="not fault_set", TOTAL_S="2")
    assert done.returncode == 1
    assert stages["tests"] == "stopped at its limit, tests.log"
    assert stages["records"] == "not begun: the time is up"
    assert not any("record" in call for call in calls)


def test_without_a_gpu_or_with_a_bad_option_it_says_so_and_begins_nothing(start):
    done, calls, _ = start(DEVICE="cpu")
    assert done.returncode == 2 and "no GPU" in done.stderr and len(calls) == 1
    done, calls, _ = start("--nonsense")
    assert done.returncode == 2 and "--dry-run" in done.stderr and not calls  # how it is called
