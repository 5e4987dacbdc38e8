"""Watch public training programs, run as their users run them: `run.py [NAME ...]`.

    python maintain/real_programs/run.py mnist nanogpt [--python PYTHON]
    python maintain/real_programs/run.py --script PATH -- ARGUMENTS

Each program of this folder has the shape of a public one (named at its top, with the licence), on
small data made here. It runs twice in a fresh folder, by itself and under `labkit watch`. Printed
are the verdict, the exit code, the wall times, and whether both runs ended with the same weights to
the bit (`model.pt`). `--script` does so for a program of your own, or for the public one itself,
with `--data FOLDER` copied beside it as `data`. A program needs what it imports (torchvision for
mnist, imagenet, reference and lightning_demo); `--python` is the interpreter
that has them. Where other programs use the cores, set OMP_NUM_THREADS=1.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = {  # name: its arguments, for some seconds on two cores at rest
    "mnist": ["--epochs", "1"],
    "imagenet": ["--seed", "1", "--epochs", "1", "-b", "8", "--images", "300", "--px", "64"],
    "nanogpt": ["--max_iters", "150", "--eval_interval", "50", "--eval_iters", "5"],
    "reference": ["--epochs", "1", "-b", "8", "-j", "4", "--crop", "64"],
    "timm_train": ["--epochs", "1", "-b", "8", "-j", "4", "--px", "64"],
    "hf_trainer": ["--texts", "1600", "--epochs", "1"],
    "lightning_demo": ["--batches", "800"],
}
LIMIT_S = 180.0
IDX = {  # MNIST's files: how many pictures, and the head of each file (type, dimensions)
    "train": 4000,
    "t10k": 1000,
}


def make_mnist(folder: Path) -> None:
    """Write random digits in the files that torchvision reads as MNIST."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for split, count in IDX.items():
        pictures = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        for kind, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            head = np.array([0x800 + array.ndim, *array.shape], dtype=">i4")
            (folder / f"{split}-{kind}-ubyte").write_bytes(head.tobytes() + array.tobytes())


def make_images(folder: Path, classes: int = 8, each: int = 60) -> None:
    """Write JPEG files of 500 x 375 pixels, a folder for each class, as ImageNet is laid out."""
    random = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            small = Image.fromarray(random.integers(0, 256, (15, 20, 3), dtype=np.uint8))
            picture = small.resize((500, 375), Image.Resampling.BICUBIC)
            picture.save(folder / f"class{label}" / f"{number}.jpg", quality=90)


def make_data(folder: Path) -> None:
    """Write everything that the programs read."""
    make_mnist(folder / "MNIST" / "raw")
    make_images(folder / "images")
    text = folder / "shakespeare_char"
    text.mkdir()
    for split, count in (("train", 1_000_000), ("val", 100_000)):
        np.random.default_rng(0).integers(0, 65, count, dtype=np.uint16).tofile(
            text / f"{split}.bin"
        )


def run(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command in a folder; return how it ended and the seconds it took."""
    started = time.monotonic()
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    return done, time.monotonic() - started


def same_weights(first: Path, second: Path) -> bool:
    """Return whether two folders hold the same `model.pt`, to the bit."""
    ours, theirs = (torch.load(each / "model.pt", weights_only=True) for each in (first, second))
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[name]) for name, value in ours.items()
    )


def watched_and_alone(python: str, script: Path, options: list[str], data: Path) -> dict[str, Any]:
    """Run a script alone and watched; return the verdict and how the two runs compare."""
    with tempfile.TemporaryDirectory() as holder:
        alone = Path(holder) / "alone"
        watched = Path(holder) / "watched"
        for folder in (alone, watched):
            shutil.copytree(data, folder / "data")
            shutil.copy(script, folder)
        command = [python, script.name, *options]
        plain, alone_s = run(command, alone)
        if plain.returncode:
            raise SystemExit(f"{script.name} fails by itself:\n{plain.stderr[-2000:]}")
        seen, watched_s = run([python, "-m", "labkit", "watch", "--json", "--", *command], watched)
        try:
            verdict = json.loads(seen.stdout)
        except json.JSONDecodeError:
            raise SystemExit(f"{script.name}, watched:\n{seen.stderr[-3000:]}") from None
        return {
            "program": script.stem,
            "options": " ".join(options),
            "exit_code": seen.returncode,
            "alone_s": round(alone_s, 1),
            "watched_s": round(watched_s, 1),
            "same_weights": same_weights(alone, watched),
            **verdict,
        }


def print_verdict(found: dict[str, Any]) -> None:
    """Print what was found of a program: behind a withheld verdict stand the other findings."""
    for key in ("program", "options", "exit_code", "alone_s", "watched_s", "same_weights"):
        print(f"{key:13} {found[key]}")
    print(f"{'confidence':13} {found['confidence']}")
    for finding in found.get("findings") or [found]:
        print(f"  {finding.get('name')}: {finding.get('cause')}: {finding.get('evidence')}")
        print(f"    {finding.get('advice')}")
    print(flush=True)


def main() -> None:
    """Run the programs that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--script", type=Path, help="a program of your own")
    parser.add_argument("--data", type=Path, help="a folder, copied beside it as data")
    parser.add_argument("--json", type=Path, help="where to append the whole verdicts")
    arguments = sys.argv[1:]
    own = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:own])
    given = arguments[own + 1 :]
    with tempfile.TemporaryDirectory() as holder:
        data = options.data
        if data is None:
            data = Path(holder) / "data"
            make_data(data)
        chosen = options.names or list(PROGRAMS)
        scripts = [options.script] if options.script else [HERE / f"{name}.py" for name in chosen]
        for script in scripts:
            defaults = [] if options.script else PROGRAMS[script.stem]
            found = watched_and_alone(options.python, script, [*defaults, *given], data)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            print_verdict(found)


if __name__ == "__main__":
    main()
