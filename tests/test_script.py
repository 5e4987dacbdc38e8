"""`lk.script`: plain PyTorch that trains as the pipeline does, and the lines that knobs stand for."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import labkit as lk
from labkit.results.plain_pytorch import changed_lines, whole_script
from labkit.spec import KNOBS, Pipeline, compiler

SHORT = {"steps": 12, "seconds": None, "xray": False, "io_ms": 0.2}
TRAINED = {
    "default": {},
    "array": {"dataset": "array", "batch_size": 32, "io_ms": 0},
    "sleep": {"dataset": "sleep", "prep_ms": 2, "seed": 7},
    "workers": {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
    "accumulation": {"accumulation_steps": 3, "dataset": "array", "num_workers": 1},
    "bf16": {"precision": "bf16", "model": "transformer", "dataset": "array"},
    "layout": {"channels_last": True, "fused_optimizer": True, "depth": 3},
    "plain images": {"augment": 0, "image_px": 24},
    "much augmented": {"augment": 3, "model": "mlp", "seed": 3},
    "stalls": {"stall_ms": 3, "stall_every": 4, "num_workers": 2},
    "no GPU": {"pin_memory": True, "non_blocking": True, "prefetch_to_device": True},
    "compiled": {"compile": "default", "dataset": "array", "model": "mlp"},
}


def job(**knobs):
    """Return a job as resolved on a GPU, written where there is none."""
    filled = {"width": 32, "depth": 2, "prep_ms": 50.0, "io_ms": 0.0, "device": "cuda:0"}
    return Pipeline().to_dict() | filled | knobs


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_script_trains_the_same_losses_to_the_bit(name, tmp_path):
    knobs = SHORT | TRAINED[name] | {"device": "cpu"}
    if "compile" in knobs and not compiler():
        pytest.skip("needs a C++ compiler")
    pipeline = Pipeline(**knobs)
    file = lk.script(pipeline).save(tmp_path / "train.py")
    run = lk.run(pipeline)
    assert lk.script(run).splitlines()[5:] == file.read_text().splitlines()[5:]
    blocker = tmp_path / "nothing_of_it" / "labkit.py"
    blocker.parent.mkdir()
    blocker.write_text("raise ImportError('not to be imported')")
    env = {**os.environ, "PYTHONPATH": str(blocker.parent), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", file]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    losses, rate = ended.stdout.splitlines()
    theirs = np.array(losses.split()[1:], np.float32)
    assert theirs.tolist() == np.array(run.loss, np.float32).tolist()
    assert len(theirs) == 12 and rate.endswith("samples/s after the warm-up")
