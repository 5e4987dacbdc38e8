"""Watch public training programs, run as their users run them.

    python maintain/real_programs/run.py mnist nanogpt [--python PYTHON]
    python maintain/real_programs/run.py --script PATH [--data FOLDER] -- ARGUMENT ...

Each program of this folder has the shape of a public one (named at its top, with the licence), on
small data made here. It runs twice in a fresh folder, by itself and under `labkit watch`. Printed
are the verdict, the exit code, the wall times, and whether both runs ended with the same weights to
the bit (`model.pt`). `--script` does so for a program of your own, or for the public one itself,
with FOLDER copied beside it as `data`. A program needs what it imports (torchvision for mnist,
imagenet, reference and lightning_demo); `--python` is the interpreter that has it. Where other
programs use the cores, set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT_S = 180.0
PROGRAMS = {  # name: its arguments, for some seconds on two cores at rest
    "mnist": ["--epochs", "1"],
    "nanogpt": ["--max_iters", "150", "--eval_interval", "50", "--eval_iters", "5"],
    "imagenet": ["--dummy", "--epochs", "1", "-b", "8", "--images", "300", "--px", "64"],
    "reference": ["--epochs", "1", "-b", "8", "-j", "4", "--crop", "64"],
    "timm_train": ["--epochs", "1", "-b", "8", "-j", "4", "--px", "64"],
    "hf_trainer": ["--texts", "1600", "--epochs", "1"],
    "lightning_demo": ["--batches", "800"],
}


def make_data(folder: Path) -> Path:
    """Write what the programs read: random digits, pictures and tokens; return the folder."""
    random = np.random.default_rng(0)
    make_digits(folder / "MNIST" / "raw", random)
    make_pictures(folder / "images", random)
    tokens = folder / "shakespeare_char"
    tokens.mkdir()
    for split, count in (("train", 1_000_000), ("val", 100_000)):
        random.integers(0, 65, count, dtype=np.uint16).tofile(tokens / f"{split}.bin")
    return folder


def make_digits(folder: Path, random: np.random.Generator) -> None:
    """Write the files that torchvision reads as MNIST."""
    folder.mkdir(parents=True)
    for split, count in (("train", 4000), ("t10k", 1000)):
        pictures = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        for kind, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            head = np.array([0x800 + array.ndim, *array.shape], dtype=">i4")
            (folder / f"{split}-{kind}-ubyte").write_bytes(head.tobytes() + array.tobytes())


def make_pictures(folder: Path, random: np.random.Generator) -> None:
    """Write JPEG files of 500 x 375 pixels, a folder for each class, as ImageNet is laid out."""
    for number in range(480):
        small = Image.fromarray(random.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        path = folder / f"class{number % 8}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


@dataclass
class Program:
    """A script, the interpreter and arguments it is run with, and the folder of its data."""

    script: Path
    python: str
    arguments: list[str]
    data: Path

    def run(self, folder: Path, *watch: str) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run it in a new `folder`, after the words `watch`; return how it ended, and seconds."""
        shutil.copytree(self.data, folder / "data")
        shutil.copy(self.script, folder)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        started = time.monotonic()
        done = subprocess.run(
            [*watch, self.python, self.script.name, *self.arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return done, time.monotonic() - started

    def watched_and_alone(self, holder: Path) -> None:
        """Run it alone and watched in `holder`; print the verdict and how the two compare."""
        alone = holder / "alone"
        watched = holder / "watched"
        plain, alone_s = self.run(alone)
        if plain.returncode:
            raise SystemExit(f"{self.script.name} fails by itself:\n{plain.stderr[-2000:]}")
        watch = [self.python, "-m", "labkit", "watch", "--json", "--"]
        seen, watched_s = self.run(watched, *watch)
        if not seen.stdout:
            raise SystemExit(f"{self.script.name}, watched:\n{seen.stderr[-3000:]}")
        verdict = json.loads(seen.stdout)
        print(f"{self.script.stem} {' '.join(self.arguments)}")
        print(f"  exit code {seen.returncode}; {alone_s:.1f} s alone, {watched_s:.1f} s watched")
        print(f"  the same weights: {same_weights(alone, watched)}")
        print(f"  {verdict['bottleneck']}, confidence {verdict['confidence']}")
        for finding in verdict["findings"]:  # behind a withheld verdict stand the other findings
            print(f"    {finding['name']}: {finding['cause']}: {finding['evidence']}")
            print(f"      {finding['advice']}", flush=True)


def same_weights(first: Path, second: Path) -> bool:
    """Return whether two folders hold the same `model.pt`, to the bit."""
    ours = torch.load(first / "model.pt", weights_only=True)
    theirs = torch.load(second / "model.pt", weights_only=True)
    same = [torch.equal(value, theirs[name]) for name, value in ours.items()]
    return ours.keys() == theirs.keys() and all(same)


def main() -> None:
    """Run the programs that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--script", type=Path, help="a program of your own; behind -- what it gets")
    parser.add_argument("--data", type=Path, help="a folder, copied beside it as data")
    options = parser.parse_args()
    if options.script:
        asked = {options.script: options.words}
    else:
        asked = {HERE / f"{name}.py": PROGRAMS[name] for name in options.words or PROGRAMS}
    with tempfile.TemporaryDirectory() as made:
        data = options.data or make_data(Path(made))
        for script, arguments in asked.items():
            program = Program(script, options.python, arguments, data)
            with tempfile.TemporaryDirectory() as holder:
                program.watched_and_alone(Path(holder))


if __name__ == "__main__":
    main()
