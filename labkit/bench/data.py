"""The datasets of the bench and the loader that feeds them to the training loop.

Images travel as uint8 and become floats on the device: a quarter of the bytes through the worker
queues and over the bus.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, Sampler

from labkit.bench import images
from labkit.bench.item_times import ItemTimes, TimedCollate, TimedDataset
from labkit.bench.process import worker_dies_with_bench

CLASSES = images.CLASSES


class JpegFiles(Dataset):
    """Real JPEG files: read, decoded with Pillow, augmented, resized. One image at a time."""

    def __init__(self, folder: Path, job: Any):
        self.files = [str(folder / f"{i:05d}.jpg") for i in range(images.COUNT)]
        self.px, self.rounds, self.seed = job.image_px, job.augment, job.seed
        self.io_s = job.io_ms / 1e3

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, ticket: tuple[int, int]) -> tuple[torch.Tensor, int]:
        draw, index = ticket
        if self.io_s:
            time.sleep(self.io_s)  # the stated wait of a network drive
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        rng = random.Random(self.seed * 1_000_003 + draw)  # same draw, same picture, any worker
        for _ in range(self.rounds):
            image = augmented(image, rng)
        pixels = np.array(image.resize((self.px, self.px)))  # (px, px, 3) uint8
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


class PreprocessedArray(Dataset):
    """The same images decoded once, in a memory-mapped array; a batch is one indexed read."""

    def __init__(self, file: Path, job: Any):
        self.file, self.array, self.io_s = file, None, job.io_ms / 1e3

    def __len__(self) -> int:
        return images.COUNT

    def __getitems__(self, tickets: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.array is None:  # opened in the worker: a map is not copied between processes
            self.array = np.load(self.file, mmap_mode="r", allow_pickle=False)
        if self.io_s:
            time.sleep(self.io_s * len(tickets))
        indices = np.array([index for _, index in tickets])
        batch = torch.from_numpy(self.array[indices])  # (B, 3, px, px) uint8, copied by the index
        return batch, torch.from_numpy(indices % CLASSES)


class Delay(Dataset):
    """The textbook loader: each batch costs `prep_ms` of sleep, and the images are made once."""

    def __init__(self, job: Any):
        self.prep_s, self.io_s = job.prep_ms / 1e3, job.io_ms / 1e3
        rng = np.random.default_rng(job.seed)
        shape = (64, 3, job.image_px, job.image_px)
        self.pool = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))

    def __len__(self) -> int:
        return images.COUNT

    def __getitems__(self, tickets: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.prep_s + self.io_s * len(tickets))
        indices = torch.tensor([index % len(self.pool) for _, index in tickets])
        return self.pool[indices], indices % CLASSES  # (B, 3, px, px) uint8, (B,) int64


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
        self.phase = max(1, job.num_workers)
        self.seen = 0

    def __call__(self, samples: Any) -> Any:
        """Collate one batch, after the stall where one is due."""
        self.seen += 1
        worker = torch.utils.data.get_worker_info()
        batch = (self.seen - 1) * self.phase + (worker.id if worker else 0)
        if batch % self.every == self.every - 1:
            time.sleep(self.stall_s)
        return self.collate(samples)


def make_dataset(job: Any, cache: Path, progress: Callable[[int, int], None]) -> Dataset:
    """Build the job's dataset, making its files first where they are missing."""
    if job.dataset == "sleep":
        return Delay(job)
    if job.dataset == "array":
        return PreprocessedArray(images.array_file(cache, job.image_px, progress), job)
    return JpegFiles(images.jpeg_folder(cache, 2 * job.image_px, progress), job)


def make_loader(dataset: Dataset, job: Any, times: ItemTimes | None = None) -> DataLoader:
    """Build the DataLoader the job asks for, with PyTorch's own meaning of every setting.

    With `times`, what the items cost is measured in the processes that prepare them.
    """
    by_batch = hasattr(dataset, "__getitems__")
    collate = _in_shared_memory if by_batch else torch.utils.data.default_collate
    if job.stall_ms:
        collate = Stalling(collate, job)
    if times is not None:
        dataset, collate = TimedDataset(dataset, times), TimedCollate(collate, times)
    return DataLoader(
        dataset,
        batch_size=job.batch_size,
        sampler=EndlessShuffle(len(dataset), job.seed, *getattr(job, "shard", ())),
        num_workers=job.num_workers,
        pin_memory=job.pin_memory,
        collate_fn=collate,
        **worker_settings(job),
    )


def worker_settings(job: Any) -> dict[str, Any]:
    """Return what a DataLoader is told about its workers; {} where it has none."""
    if not job.num_workers:
        return {}
    return {
        "prefetch_factor": job.prefetch_factor,
        "persistent_workers": job.persistent_workers,
        "worker_init_fn": worker_dies_with_bench,
        "timeout": 120,  # a worker that hangs fails the run instead of waiting forever
    }


def like_a_batch(job: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch as large as the job's."""
    pixels = torch.zeros(job.batch_size, 3, job.image_px, job.image_px, dtype=torch.uint8)
    return pixels, torch.zeros(job.batch_size, dtype=torch.int64)


def _in_shared_memory(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Hand a whole batch over; in a worker through shared memory, as default_collate does.

    Left to the queue's own thread, a full /dev/shm would drop the batch without an error.
    """
    if torch.utils.data.get_worker_info() is None:
        return batch
    return tuple(tensor.share_memory_() for tensor in batch)
