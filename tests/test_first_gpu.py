"""The slices for a lent card, tried on this machine as `--dry-run` does: no card is needed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
SLICES = sorted((ROOT / "maintain" / "first_gpu").glob("[0-9]*.sh"))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scripts for Linux")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("script", SLICES, ids=lambda path: path.stem)
def test_each_slice_runs_without_a_card_and_leaves_its_archive(script, tmp_path):
    env = os.environ | {"PYTHON": sys.executable, "LABKIT_HOME": str(tmp_path / "home")}
    command = ["bash", script, "--dry-run", tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / f"{script.stem}.tgz").stat().st_size


def test_a_notebook_that_runs_into_its_limit_has_kept_the_cells_before(tmp_path):
    cells = ["print(6 * 7)", "1 / 0", "print(9 * 'a')", "import time; time.sleep(600)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    source = tmp_path / "long.ipynb"
    nbformat.write(notebook, source)
    done = tmp_path / "done"
    done.mkdir()
    command = [sys.executable, ROOT / "maintain" / "execute.py", "--into", done, source]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 100
    kept = ""
    while 9 * "a" not in kept and time.monotonic() < deadline:
        time.sleep(0.1)
        kept = "".join(path.read_text() for path in done.glob("*.ipynb"))
    running.kill()  # as `timeout` does
    said = running.communicate()[0]
    outputs = [cell.outputs for cell in nbformat.reads(kept, as_version=4).cells]
    assert outputs[0][0].text == "42\n" and outputs[1][0].ename == "ZeroDivisionError"
    assert outputs[2][0].text == "aaaaaaaaa\n" and outputs[3] == []
    assert said.count("failed") == 1
