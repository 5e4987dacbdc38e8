"""The same items four ways: what a `__getitem__` costs, and where its time goes."""

from __future__ import annotations

import cProfile
import pstats
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from labkit.bench import data
from labkit.bench.workbench import Workbench

TOP = 3  # functions that a profile names


class Pixel:
    """What an object-oriented dataset makes of every pixel. It is the naive step's cost."""

    def __init__(self, rgb: tuple[int, int, int]):
        self.red, self.green, self.blue = rgb

    def scaled(self) -> tuple[float, float, float]:
        """The three channels from 0 to 1."""
        return self.red / 255, self.green / 255, self.blue / 255


class Naive:
    """An object a pixel, a Python loop over them, and a list that becomes a tensor."""

    def __init__(self, files: list[str]):
        self.files = files

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        raw = image.tobytes()
        pixels = [Pixel(raw[i : i + 3]) for i in range(0, len(raw), 3)]
        rows = torch.tensor([pixel.scaled() for pixel in pixels])  # (px * px, 3)
        return rows.T.reshape(3, image.height, image.width)

    def batch(self, indices: list[int]) -> torch.Tensor:
        """What a DataLoader does with single items: fetch each, then stack."""
        return torch.stack([self[index] for index in indices])  # (B, 3, px, px)


class Vectorised(Naive):
    """The same numbers, all pixels at once."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as file:
            pixels = np.asarray(file.convert("RGB"))  # (px, px, 3) uint8
        return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255)


class ByTheBatch(Vectorised):
    """As `__getitems__` gets a whole batch: one array is filled, and converted once."""

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Decode into one array, convert the whole batch."""
        pixels: Any = None
        for row, index in enumerate(indices):
            with Image.open(self.files[index]) as file:
                image = np.asarray(file.convert("RGB"))
            if pixels is None:
                pixels = np.empty((len(indices), *image.shape), np.uint8)  # (B, px, px, 3)
            pixels[row] = image
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


class Offline:
    """Decoded once, ahead of time, into one array on disk: a batch is one indexed read."""

    def __init__(self, file: Path):
        self.array = np.load(file, mmap_mode="r", allow_pickle=False)  # (count, px, px, 3)

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Read the batch's rows."""
        pixels = torch.from_numpy(self.array[indices])
        return pixels.permute(0, 3, 1, 2).float().div_(255)


def measure(job: Any, bench: Workbench) -> None:
    """Time a batch of `batch_size` images of `px` pixels four ways, and profile each.

    All four return the same tensor, which is checked. `values["top"]` holds the functions in which
    cProfile finds most of the time, with their share of it.
    """
    bench.stage("making images")
    count = 4 * job.batch_size
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        files = [str(Path(place) / f"{i}.jpg") for i in range(count)]
        for i, file in enumerate(files):
            Image.fromarray(data.draw_image(i, job.px)).save(file, quality=90)
        decoded = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
        np.save(Path(place) / "images.npy", decoded)
        ways = {
            "naive": Naive(files),
            "vectorised": Vectorised(files),
            "by the batch": ByTheBatch(files),
            "offline": Offline(Path(place) / "images.npy"),
        }
        indices = torch.randperm(count)[: job.batch_size].tolist()
        wanted = ways["vectorised"].batch(indices)
        for name, way in ways.items():
            bench.stage(f"measuring: {name}")
            if not torch.equal(way.batch(indices), wanted):
                raise RuntimeError(f"{name}: not the same items")
            top = _top(lambda way=way: way.batch(indices))
            seconds = bench.time(lambda way=way: way.batch(indices), of=name, px=job.px)
            bench.write(
                f"profile of {name}",
                values={"item_us": seconds / job.batch_size * 1e6, "top": top},
            )


def _top(work: Any) -> list[list[Any]]:
    """Return the functions with most time of their own: [name, share of all]."""
    profile = cProfile.Profile()
    profile.runcall(work)
    stats = pstats.Stats(profile).stats
    total = sum(own for _, _, own, _, _ in stats.values()) or 1.0
    rows = sorted(stats.items(), key=lambda row: -row[1][2])[:TOP]
    return [[_short(where), own / total] for where, (_, _, own, _, _) in rows]


def _short(where: tuple[str, int, str]) -> str:
    file, _, name = where
    return name if file == "~" else f"{Path(file).name}: {name}"
