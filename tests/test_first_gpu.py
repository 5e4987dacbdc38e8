"""The script for the first real card, rehearsed on a stand-in, and with a Python that pretends.

Each stage leaves a log, one that fails stops none, and what has passed is not done again.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import labkit as lk

TESTS = Path(__file__).parent
SCRIPT = TESTS / "first_gpu.sh"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("timeout"), reason="a script for Linux"),
]
STAGES = ["machine", "tests", "records", "notebooks", "faults"]
NOTEBOOKS = sorted(path.stem for path in (TESTS.parent / "notebooks").glob("*.ipynb"))
CALLED = ["machine", "tests", "records", *NOTEBOOKS, "faults"]

STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
case "$*" in *"$FAILING"*) echo "it broke"; exit 3 ;; esac
case "$*" in *"$SLOW"*) sleep 60 ;; esac
echo "device  A card (cuda:0)"
"""


def start(*arguments, **environment):
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture
def pretended(tmp_path):
    """Start the script with a Python that writes down what it is asked: (result, calls, OUT)."""
    stub, out = tmp_path / "python", tmp_path / "out"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def go(*arguments, failing="nothing", slow="nothing", **environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        done = start(
            *arguments, str(out), PYTHON=str(stub), CALLS=str(calls), FAILING=failing, SLOW=slow,
            **environment,
        )  # fmt: skip
        return done, calls.read_text().splitlines(), out

    return go


def results(out):
    """{stage: what the summary says of it}."""
    lines = (out / "summary.txt").read_text().splitlines()
    return {line[:28].strip(): line[29:63].strip() for line in lines}


def test_a_failing_stage_leaves_its_log_and_is_all_that_is_done_again(pretended):
    pretended("--dry-run")  # counts for nothing on a card
    done, calls, out = pretended(failing="not fault_set")
    assert done.returncode == 1 and len(calls) == len(CALLED), done.stderr
    passed = dict.fromkeys(CALLED, "passed")
    assert results(out) == passed | {"tests": "FAILED (3), tests.log"}
    assert "it broke" in (out / "tests.log").read_text()
    done, calls, _ = pretended()
    assert done.returncode == 0 and len(calls) == 1 and "test_gpu.py" in calls[0]
    done, calls, _ = pretended()
    assert done.returncode == 0 and not calls
    assert results(out) == dict.fromkeys(CALLED, "passed before")


def test_what_takes_too_long_is_stopped_and_what_is_left_is_not_begun(pretended):
    done, calls, out = pretended(slow="not fault_set", TOTAL_S="2")
    assert done.returncode == 1
    assert results(out)["tests"] == "stopped at its limit, tests.log"
    assert results(out)["records"] == "not begun: the time is up"
    assert not any("record" in call for call in calls)


def test_without_a_gpu_it_says_so_and_begins_nothing(tmp_path):
    if lk.machine().kind == "gpu":
        pytest.skip("there is a GPU here")
    done = start(str(tmp_path / "out"))
    assert done.returncode == 2 and "no GPU" in done.stderr
    assert not (tmp_path / "out" / "tests.log").exists()
    done = start("--nonsense")
    assert done.returncode == 2 and "--dry-run" in done.stderr  # told how it is called


@pytest.mark.skipif(not shutil.which("g++"), reason="the stand-in is compiled with g++")
def test_all_of_it_is_rehearsed_on_a_stand_in(tmp_path):
    out = tmp_path / "out"
    done = start(
        "--dry-run", str(out), LABKIT_STANDIN="T4,T4", LABKIT_STANDIN_SPEED="1",
        LABKIT_STANDIN_NUMBERS="0", PYTHONPATH=str(TESTS / "standin_site"),
        LABKIT_HOME=str(tmp_path / "home"),
    )  # fmt: skip
    logs = "\n".join(path.read_text()[-3000:] for path in out.glob("*.log"))
    assert done.returncode == 0, logs
    assert results(out) == dict.fromkeys(STAGES, "passed")
    assert "8 passed" in (out / "tests.log").read_text()  # the others need a real card
    [record] = lk.recorded(folder=out / "records")
    assert record.kind == "gpu" and "T4" in record.hardware
