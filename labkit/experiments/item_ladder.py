"""The same items four ways: what a `__getitem__` costs, and where its time goes."""

from __future__ import annotations

import cProfile
import pstats
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labkit.experiments.measure import bars, faster
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, data, image = Later("torch"), Later("labkit.bench.data"), Later("PIL.Image")

TOP = 3  # functions that a profile names


class Pixel:
    """What an object-oriented dataset makes of every pixel. It is the naive step's cost."""

    def __init__(self, rgb: bytes):
        self.red, self.green, self.blue = rgb

    def scaled(self) -> tuple[float, float, float]:
        """Return the three channels from 0 to 1."""
        return self.red / 255, self.green / 255, self.blue / 255


class Naive:
    """An object a pixel, a Python loop over them, and a list that becomes a tensor."""

    def __init__(self, files: list[str]):
        self.files = files

    def decoded(self, index: int) -> np.ndarray:
        """Return a file's pixels, (px, px, 3) uint8."""
        with image.open(self.files[index]) as file:
            return np.array(file.convert("RGB"))

    def __getitem__(self, index: int) -> torch.Tensor:
        with image.open(self.files[index]) as file:
            picture = file.convert("RGB")
        raw = picture.tobytes()
        pixels = [Pixel(raw[i : i + 3]) for i in range(0, len(raw), 3)]
        rows = torch.tensor([pixel.scaled() for pixel in pixels])  # (px * px, 3)
        return rows.T.reshape(3, picture.height, picture.width)

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Do what a DataLoader does with single items: fetch each, then stack."""
        return torch.stack([self[index] for index in indices])  # (B, 3, px, px)


class Vectorised(Naive):
    """The same numbers, all pixels at once."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.decoded(index)).permute(2, 0, 1).float().div_(255)


class ByTheBatch(Naive):
    """As `__getitems__` gets a whole batch: one array is filled, and converted once."""

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Decode into one array, convert the whole batch."""
        first = self.decoded(indices[0])
        pixels = np.empty((len(indices), *first.shape), np.uint8)  # (B, px, px, 3)
        pixels[0] = first
        for row, index in enumerate(indices[1:], 1):
            pixels[row] = self.decoded(index)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


class Offline:
    """Decoded once, ahead of time, into one array on disk: a batch is one indexed read."""

    def __init__(self, file: Path):
        self.array = np.load(file, mmap_mode="r", allow_pickle=False)  # (count, px, px, 3)

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Read the batch's rows."""
        return torch.from_numpy(self.array[indices]).permute(0, 3, 1, 2).float().div_(255)


@experiment(
    "the same batch of images, prepared in four ways",
    px=knob(64, "edge of an image", unit="px", low=8, high=1024),
    batch_size=knob(16, "images in a batch", low=1, high=1024, reach=256),
)
def item_ladder(job: Any, bench: Any) -> None:
    """Time a batch of `batch_size` images of `px` pixels four ways, and profile each.

    All four return the same tensor, which is checked. `values["top"]` holds the functions in which
    cProfile finds most of the time, with their share of it.
    """
    bench.stage("making images")
    count = 4 * job.batch_size
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        files = [str(Path(place) / f"{i}.jpg") for i in range(count)]
        for i, file in enumerate(files):
            image.fromarray(data.draw_image(i, job.px)).save(file, quality=90)
        np.save(Path(place) / "images.npy", np.stack([*map(Naive(files).decoded, range(count))]))
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

            def work(way: Any = way) -> Any:
                return way.batch(indices)

            top = _top(work)
            seconds = bench.time(work, of=name, px=job.px)
            item_us = seconds / job.batch_size * 1e6
            bench.write(f"profile of {name}", values={"item_us": item_us, "top": top})


def _top(work: Callable) -> list[list[Any]]:
    """Return the functions with most time of their own: [name, share of all]."""
    profile = cProfile.Profile()
    profile.runcall(work)
    stats = pstats.Stats(profile).stats
    total = sum(own for _, _, own, _, _ in stats.values()) or 1.0
    rows = sorted(stats.items(), key=lambda row: -row[1][2])[:TOP]
    return [
        [name if file == "~" else f"{Path(file).name}: {name}", own / total]
        for (file, _, name), (_, _, own, _, _) in rows
    ]


@item_ladder.figure
def draw(measured: Any, before: Any = None) -> Any:
    """Draw the time of a batch, each way."""
    return bars(measured, before, faster(measured, "naive", "offline"))
