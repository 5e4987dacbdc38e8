"""Real JPEG files to train on: procedural, seeded, distinct, made once and kept in the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 512  # distinct images: above what two workers hold in flight, below a second to make
CLASSES = 10
VERSION = 1  # part of the folder's name: a new recipe never meets old files


def draw(index: int, px: int) -> np.ndarray:
    """Return image `index` as (px, px, 3) uint8: a grating of its class, a blob, and film grain.

    The class sets the grating's angle and colour, so a model can learn it; phase, blob and grain
    come from the index, so no two files are alike and JPEG has real detail to decode.
    """
    label = index % CLASSES
    rng = np.random.default_rng([VERSION, index, px])
    y, x = np.mgrid[0:px, 0:px] / px
    angle = np.pi * label / CLASSES
    phase, frequency = rng.uniform(0, 2 * np.pi), rng.uniform(5, 8)
    wave = np.sin(2 * np.pi * frequency * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    cx, cy, size = rng.uniform(0.2, 0.8, 2).tolist() + [rng.uniform(0.05, 0.2)]
    blob = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * size**2))
    tint = 0.5 + 0.4 * np.cos(2 * np.pi * (label / CLASSES + np.arange(3) / 3))
    image = (0.5 + 0.3 * wave)[..., None] * tint + 0.3 * blob[..., None]
    image += rng.normal(0, 0.06, (px, px, 3))
    return (255 * image.clip(0, 1)).astype(np.uint8)


def jpeg_folder(cache: Path, px: int, progress: Callable[[int, int], None]) -> Path:
    """Return a folder of `COUNT` JPEG files of `px` by `px` pixels, making it if it is missing.

    `progress(done, total)` is called as files are made. The folder appears under its name only
    when it is complete, so an interrupted or a simultaneous build leaves nothing half done.
    """

    def make(folder: Path) -> None:
        for index in range(COUNT):
            Image.fromarray(draw(index, px)).save(folder / f"{index:05d}.jpg", quality=90)
            if index % 32 == 0:
                progress(index, COUNT)

    return _once(cache, f"jpeg-v{VERSION}-{COUNT}x{px}px", make)


def array_file(cache: Path, px: int, progress: Callable[[int, int], None]) -> Path:
    """Return the same images decoded and resized to `px`: one .npy of (COUNT, 3, px, px) uint8."""

    def make(folder: Path) -> None:
        files = jpeg_folder(cache, 2 * px, progress)
        images = np.lib.format.open_memmap(
            folder / "images.npy", mode="w+", dtype=np.uint8, shape=(COUNT, 3, px, px)
        )
        for index in range(COUNT):
            with Image.open(files / f"{index:05d}.jpg") as image:
                images[index] = np.asarray(image.resize((px, px))).transpose(2, 0, 1)
            if index % 32 == 0:
                progress(index, COUNT)
        images.flush()

    return _once(cache, f"array-v{VERSION}-{COUNT}x{px}px", make) / "images.npy"


def _once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    folder = cache / name
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f".{name}-*"):  # left by a build that was killed
            if time.time() - old.stat().st_mtime > 600:
                shutil.rmtree(old, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
        try:
            make(part)
            os.replace(part, folder)
        except OSError:
            if not folder.is_dir():  # not a race with another run that finished first
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder
