"""The datasets of the bench, the image files behind them, and the loader that feeds the loop.

Images travel as uint8 and become floats on the device: a quarter of the bytes through the worker
queues and over the bus.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, Sampler

from labkit.bench.item_times import ItemTimes, TimedDataset, collated
from labkit.bench.process import worker_dies_with_bench

COUNT = 512  # distinct images: above what two workers hold in flight, below a second to make
CLASSES = 10
VERSION = 1  # part of the folder's name: a new recipe never meets old files


class JpegFiles(Dataset):
    """Real JPEG files: read, decoded with Pillow, augmented, resized. One image at a time.

    As in all datasets here an item is fetched by a `ticket`: (draw number, index).
    """

    def __init__(self, folder: Path, job: Any):
        self.job = job
        self.files = [str(folder / f"{i:05d}.jpg") for i in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, ticket: tuple[int, int]) -> tuple[torch.Tensor, int]:
        draw, index = ticket
        if self.job.io_ms:
            time.sleep(self.job.io_ms / 1e3)  # the simulated delay of a network drive
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        rng = random.Random(self.job.seed * 1_000_003 + draw)  # same draw, same picture, any worker
        for _ in range(self.job.augment):
            image = augmented(image, rng)
        px = self.job.image_px
        pixels = np.array(image.resize((px, px)))  # (px, px, 3) uint8
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), index % CLASSES


def augmented(image: Image.Image, rng: random.Random) -> Image.Image:
    """Return `image` after a random crop of at least four fifths, a flip and a colour change."""
    width, height = image.size
    share = rng.uniform(0.8, 1.0)
    w, h = int(width * share), int(height * share)
    left, top = rng.randint(0, width - w), rng.randint(0, height - h)
    image = image.crop((left, top, left + w, top + h)).resize((width, height))
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.2))
    return ImageEnhance.Color(image).enhance(rng.uniform(0.8, 1.2))


class Batched(Dataset):
    """Images of an array, a batch by one indexed read.

    For "array" it is the same images decoded once, in a memory-mapped file. For "sleep", the
    textbook loader, it is noise made once, and each batch costs `prep_ms` of sleep.
    """

    def __init__(self, job: Any, file: Path | None = None):
        self.file, self.array = file, None
        self.batch_s, self.item_s = (0.0 if file else job.prep_ms / 1e3), job.io_ms / 1e3
        if file is None:
            shape = (64, 3, job.image_px, job.image_px)
            self.array = np.random.default_rng(job.seed).integers(0, 256, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __getitems__(self, tickets: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.array is None:  # opened in the worker: a map is not copied between processes
            self.array = np.load(self.file, mmap_mode="r", allow_pickle=False)
        if seconds := self.batch_s + self.item_s * len(tickets):
            time.sleep(seconds)
        indices = np.array([index % len(self.array) for _, index in tickets])
        batch = torch.from_numpy(self.array[indices])  # (B, 3, px, px) uint8, copied by the index
        return batch, torch.from_numpy(indices % CLASSES)  # (B,) int64


class EndlessShuffle(Sampler):
    """Shuffled epochs without end, as (draw number, index): the run says when to stop.

    So the last batches of a run are prepared under the same load as all others, and the n-th
    sample is the same picture whatever the number of workers. Of `ranks` that train together each
    takes every so-many-th draw, starting with its own number, `rank`.
    """

    def __init__(self, count: int, seed: int, rank: int = 0, ranks: int = 1):
        self.count, self.seed, self.rank, self.ranks = count, seed, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        rng, draw = random.Random(self.seed), 0
        while True:
            for index in rng.sample(range(self.count), self.count):
                if draw % self.ranks == self.rank:
                    yield draw, index
                draw += 1


class Stalling:
    """A collate step that sleeps `stall_ms` in one of `stall_every` batches: a slow-disk spike."""

    def __init__(self, collate: Callable, job: Any):
        self.collate, self.every, self.stall_s = collate, job.stall_every, job.stall_ms / 1e3
        self.workers, self.seen = max(1, job.num_workers), 0

    def __call__(self, samples: Any) -> Any:
        """Collate one batch, after the stall where one is due."""
        worker = torch.utils.data.get_worker_info()
        batch = self.seen * self.workers + (worker.id if worker else 0)
        self.seen += 1
        if batch % self.every == self.every - 1:
            time.sleep(self.stall_s)
        return self.collate(samples)


def make_dataset(job: Any, cache: Path, progress: Callable[[int, int], None]) -> Dataset:
    """Build the job's dataset, making its files first where they are missing."""
    if job.dataset == "jpeg":
        return JpegFiles(jpeg_folder(cache, 2 * job.image_px, progress), job)
    file = array_file(cache, job.image_px, progress) if job.dataset == "array" else None
    return Batched(job, file)


def make_loader(dataset: Dataset, job: Any, times: ItemTimes | None = None) -> DataLoader:
    """Build the DataLoader the job asks for, with PyTorch's own meaning of every setting.

    With `times`, what the items cost is measured in the processes that prepare them.
    """
    by_batch = hasattr(dataset, "__getitems__")
    collate = _in_shared_memory if by_batch else torch.utils.data.default_collate
    if job.stall_ms:
        collate = Stalling(collate, job)
    sampler = EndlessShuffle(len(dataset), job.seed, *getattr(job, "shard", ()))
    if times is not None:
        dataset, collate = TimedDataset(dataset, collate, times), collated
    return DataLoader(dataset, sampler=sampler, collate_fn=collate, **loader_settings(job))


def loader_settings(job: Any) -> dict[str, Any]:
    """Return what every DataLoader of the bench is told: the job's knobs, and care for workers."""
    names = ["batch_size", "num_workers", "pin_memory"]
    care = {}
    if job.num_workers:
        names += ["prefetch_factor", "persistent_workers"]
        # a worker that hangs fails the run instead of waiting forever
        care = {"worker_init_fn": worker_dies_with_bench, "timeout": 120}
    return {name: getattr(job, name) for name in names} | care


def _in_shared_memory(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Hand a whole batch over; in a worker through shared memory, as default_collate does.

    Left to the queue's own thread, a full /dev/shm would drop the batch without an error.
    """
    if torch.utils.data.get_worker_info() is None:
        return batch
    return tuple(tensor.share_memory_() for tensor in batch)


# -- the files: procedural, seeded, distinct, made once and kept in the cache ----------------------


def draw_image(index: int, px: int) -> np.ndarray:
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

    `progress(done, total)` is called as files are made.
    """

    def make(folder: Path) -> None:
        for index in range(COUNT):
            Image.fromarray(draw_image(index, px)).save(folder / f"{index:05d}.jpg", quality=90)
            if index % 32 == 0:
                progress(index, COUNT)

    return _once(cache, f"jpeg-v{VERSION}-{COUNT}x{px}px", make)


def array_file(cache: Path, px: int, progress: Callable[[int, int], None]) -> Path:
    """Return the same images decoded and resized to `px`: one .npy of (COUNT, 3, px, px) uint8."""

    def make(folder: Path) -> None:
        size, place = (COUNT, 3, px, px), folder / "images.npy"
        array = np.lib.format.open_memmap(place, mode="w+", dtype=np.uint8, shape=size)
        for index, file in enumerate(sorted(jpeg_folder(cache, 2 * px, progress).iterdir())):
            with Image.open(file) as image:
                array[index] = np.asarray(image.resize((px, px))).transpose(2, 0, 1)
        array.flush()

    return _once(cache, f"array-v{VERSION}-{COUNT}x{px}px", make) / "images.npy"


def _once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder that appears under its name only when complete, whoever else is making it."""
    folder = cache / name
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=cache, prefix=".", ignore_cleanup_errors=True)
        with made as part:
            make(Path(part))
            try:
                os.replace(part, folder)
            except OSError:
                if not folder.is_dir():  # not a race with another run that finished first
                    raise
    return folder
