"""The slices for a lent card, tried on this machine as `--dry-run` does: no card is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "maintain" / "first_gpu"
SLICES = sorted(path for path in FOLDER.glob("*.sh") if path.stem != "common")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scripts for Linux")


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
