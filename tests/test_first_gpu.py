"""The slices for the first real card, with a Python that pretends: the logic of their stages.

Each stage leaves a log, and all of it comes back in one archive.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLICES = sorted(path.stem for path in (ROOT / "maintain" / "first_gpu").glob("[0-9]*.sh"))
pytestmark = pytest.mark.skipif(not shutil.which("timeout"), reason="scripts for Linux")

STUB = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
echo "device  A card ($DEVICE)"
"""


@pytest.fixture
def start(tmp_path):
    """Start a slice with a Python that writes down what it is asked: (result, calls, stages)."""
    stub, calls = tmp_path / "python", tmp_path / "calls"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def go(slice_name, *options):
        calls.write_text("")
        usual = {"PYTHON": stub, "CALLS": calls, "LABKIT_HOME": tmp_path / "home"}
        usual = {name: str(path) for name, path in usual.items()}
        script = ROOT / "maintain" / "first_gpu" / f"{slice_name}.sh"
        command, env = ["bash", script, *options, tmp_path], os.environ | usual | {"DEVICE": "cpu"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        with tarfile.open(tmp_path / f"{slice_name}.tgz") as archive:
            summary = archive.extractfile("./summary.txt").read().decode().splitlines()
            logs = archive.getnames()
        stages = {line[:28].strip(): line[29:55].strip() for line in summary}
        assert {f"./{stage}.log" for stage in stages if "begun" not in stages[stage]} <= {*logs}
        return done, calls.read_text(), stages

    return go


@pytest.mark.parametrize("slice_name", SLICES)
def test_each_slice_can_be_rehearsed_without_a_card(slice_name, start):
    done, calls, stages = start(slice_name, "--dry-run")
    assert done.returncode == 0 and {*stages.values()} == {"passed"}, done.stderr
    assert len(stages) > 1 and "--execute" not in calls


def test_the_slices_have_every_notebook_and_keep_to_ten_minutes(start):
    asked = "".join((ROOT / "maintain" / "first_gpu" / f"{name}.sh").read_text() for name in SLICES)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f" {notebook.name[:2]}" in asked
    done, calls, _ = start("5_record")
    assert done.returncode == 2 and "no GPU" in done.stderr and "record" not in calls
