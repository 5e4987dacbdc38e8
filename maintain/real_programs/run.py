"""Watch public training programs, run as their users run them.

    python maintain/real_programs/run.py [real_programs/nanogpt ...]

Each program of this folder has the shape of a public one (named at its top, with the licence), on
small data made here; the Trainer of Hugging Face stands in `scripts/`. It runs twice in a fresh
folder, by itself and under `labkit watch`. Printed are the verdict, the wall times, and whether
both runs ended with the same weights to the bit (`model.pt`). A program needs what it imports
(torchvision for reference). Where other programs use the cores, set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

MAINTAIN = Path(__file__).parents[1]
LIMIT_S = 180.0
PROGRAMS = {  # name: its arguments, for some seconds on two cores at rest
    "real_programs/nanogpt": ["--max_iters", "150"],
    "real_programs/reference": ["--epochs", "1", "-b", "8", "--crop", "64"],
    "real_programs/lightning_demo": [],
    "scripts/22_hf_tiny_bert_mlm": [],
}
WATCH = [sys.executable, "-m", "labkit", "watch", "--json", "--"]


def make_data(folder: Path) -> None:
    """Write what the programs read: random pictures and tokens."""
    random = np.random.default_rng(0)
    for number in range(480):  # JPEGs, a folder for each class, as ImageNet is laid out
        small = Image.fromarray(random.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        path = folder / "images" / f"class{number % 8}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    tokens = folder / "shakespeare_char"
    tokens.mkdir()
    for split in ("train", "val"):
        random.integers(0, 65, 100_000, dtype=np.uint16).tofile(tokens / f"{split}.bin")


def run(name: str, folder: Path, *watch: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a program in `folder`, after the words `watch`; return how it ended, and seconds."""
    path = [str(MAINTAIN.parent), os.environ.get("PYTHONPATH", "")]
    started = time.monotonic()
    done = subprocess.run(
        [*watch, sys.executable, shutil.copy(MAINTAIN / f"{name}.py", folder), *PROGRAMS[name]],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise SystemExit(f"{name} {'watched' if watch else 'alone'}:\n{done.stderr[-3000:]}")
    return done, time.monotonic() - started


def watched_and_alone(name: str, alone: Path, watched: Path) -> None:
    """Run it in these folders; print the verdict and how the two compare."""
    for folder in (alone, watched):
        make_data(folder / "data")
    _, alone_s = run(name, alone)
    seen, watched_s = run(name, watched, *WATCH)
    verdict = json.loads(seen.stdout)
    print(f"{name}: {alone_s:.1f} s alone, {watched_s:.1f} s watched")
    print(f"  the same weights: {same_weights(alone, watched)}")
    print(f"  {verdict['bottleneck']}, confidence {verdict['confidence']}")
    for finding in verdict["findings"]:  # behind a withheld verdict stand the other findings
        print("    {name}: {cause}: {evidence}\n      {advice}".format(**finding), flush=True)


def same_weights(*folders: Path) -> bool:
    """Return whether two folders hold the same `model.pt`, to the bit."""
    ours, theirs = (torch.load(folder / "model.pt", weights_only=True) for folder in folders)
    return ours.keys() == theirs.keys() and all(map(torch.equal, ours.values(), theirs.values()))


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as watched:
            watched_and_alone(name, Path(alone), Path(watched))
