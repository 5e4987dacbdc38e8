"""The slices for a lent card, tried on this machine as `--dry-run` does: no card is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

import labkit as lk

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


@pytest.mark.slow
def test_a_record_of_the_quarter_hour_stands_beside_rows_of_ones_own(tmp_path):
    command = [sys.executable, FOLDER / "quarter_hour.py", "--dry-run", "--out", tmp_path]
    subprocess.run([*command, "--only", "roofline", "--only", "gelu"], check=True, timeout=300)
    gelu, roofline = lk.recorded(folder=tmp_path)
    skipped = gelu.load().rows.set_index("way")["error"]
    assert skipped["PyTorch"] is None and "needs CUDA" in skipped["get_kernel"]
    mine = pandas.DataFrame({"batch": [1, 8], "tflops": [1.0, 2.0], "precision": "bf16"})
    figure = lk.plot(mine, "batch", "tflops", "precision", beside=roofline.load())
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    texts = [text for text in texts if not text.startswith("hollow")]  # what was noisy
    assert len(texts) == 4 and all("RECORDED on" in text for text in texts[1:])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.gz")}
    subprocess.run([*command, "--only", "roofline"], check=True, timeout=300)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.gz")}


def test_the_slices_have_every_notebook():
    asked = "".join(script.read_text() for script in SLICES)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f" {notebook.name[:2]}" in asked
