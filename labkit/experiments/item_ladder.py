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


def decoded(file: str) -> np.ndarray:
    """Return a file's pixels, (px, px, 3) uint8."""
    with image.open(file) as picture:
        return np.array(picture.convert("RGB"))


def to_floats(pixels: np.ndarray) -> torch.Tensor:
    """Return a batch, (B, px, px, 3) uint8, as the model takes it, (B, 3, px, px)."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


def naive(files: list[str]) -> torch.Tensor:
    """Make an object a pixel, loop over them in Python, and a list becomes a tensor."""
    items = []
    for file in files:
        with image.open(file) as opened:
            picture = opened.convert("RGB")
        raw = picture.tobytes()
        pixels = [Pixel(raw[i : i + 3]) for i in range(0, len(raw), 3)]
        rows = torch.tensor([pixel.scaled() for pixel in pixels])  # (px * px, 3)
        items.append(rows.T.reshape(3, picture.height, picture.width))
    return torch.stack(items)


def vectorised(files: list[str]) -> torch.Tensor:
    """Convert all pixels of an item at once, and stack, as a DataLoader does with single items."""
    return torch.stack([to_floats(decoded(file)[None])[0] for file in files])


def by_the_batch(files: list[str]) -> torch.Tensor:
    """Fill one array and convert it once, as `__getitems__` gets a whole batch."""
    first = decoded(files[0])
    pixels = np.empty((len(files), *first.shape), np.uint8)  # (B, px, px, 3)
    pixels[0] = first
    for row, file in enumerate(files[1:], 1):
        pixels[row] = decoded(file)
    return to_floats(pixels)


@experiment(
    "the same batch of images, prepared in four ways",
    px=knob(64, "edge of an image", unit="px", low=8, high=1024),
    batch_size=knob(16, "images in a batch", low=1, high=1024, reach=256),
)
def item_ladder(job: Any, bench: Any) -> None:
    """Time a batch of `batch_size` images of `px` pixels four ways, and profile each.

    All four return the same tensor, which is checked. "offline" is decoded ahead of time into one
    array on disk, so that a batch is one indexed read. `values["top"]` holds the functions in which
    cProfile finds most of the time, with their share of it.
    """
    bench.stage("making images")
    count = 4 * job.batch_size
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        files = [str(Path(place) / f"{i}.jpg") for i in range(count)]
        for i, file in enumerate(files):
            image.fromarray(data.draw_image(i, job.px)).save(file, quality=90)
        np.save(Path(place) / "images.npy", np.stack([decoded(file) for file in files]))
        array = np.load(Path(place) / "images.npy", mmap_mode="r", allow_pickle=False)
        indices = torch.randperm(count)[: job.batch_size].tolist()
        chosen = [files[index] for index in indices]
        wanted = vectorised(chosen)
        for name, work in {
            "naive": lambda: naive(chosen),
            "vectorised": lambda: vectorised(chosen),
            "by the batch": lambda: by_the_batch(chosen),
            "offline": lambda: to_floats(array[indices]),
        }.items():
            bench.stage(f"measuring: {name}")
            if not torch.equal(work(), wanted):
                raise RuntimeError(f"{name}: not the same items")
            top = _top(work)
            item_us = bench.time(work, of=name, px=job.px) / job.batch_size * 1e6
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
