"""The bench's datasets (images as uint8), their files and their loader."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset, get_worker_info

from labkit.instruments.lifetime import worker_dies_with_bench
from labkit.knobs import Settings
from labkit.spec import LOADER_KNOBS, Job
from labkit.stamps.events import EventLog
from labkit.stamps.folder_rights import is_ours

IMAGE_COUNT = 512  # distinct images: above what two workers hold in flight
EPOCH = 51_200  # samples, each of one of the images: an epoch is longer than most runs
IMAGE_CLASSES = 10
NOISE_IMAGES = 64  # of dataset="sleep"
# A worker that hangs fails the run after 120 s instead of waiting forever
CARE_FOR_WORKERS: Settings = {"worker_init_fn": worker_dies_with_bench, "timeout": 120}
Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (B, 3, px, px) uint8 and labels (B,) int64."""

Collate = Callable[..., object]
RECIPE = 2  # part of the folder's name: a new recipe never meets old files


class JpegFiles(Dataset):
    """Real JPEG files, decoded with Pillow."""

    def __init__(self, folder: Path, job: Job):
        self.job = job
        self.folder = folder

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        place = index % IMAGE_COUNT
        if self.job.io_ms:
            time.sleep(self.job.io_ms / 1e3)  # the simulated delay of a network drive
        with Image.open(self.folder / f"{place:05d}.jpg") as file:
            image = file.convert("RGB")
        rng = random.Random(self.job.seed * 1_000_003 + index)  # the same picture in any worker
        for _ in range(self.job.augment):
            image = augment_image(image, rng)
        px = self.job.image_px
        pixels = np.array(image.resize((px, px)))  # (px, px, 3) uint8
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), place % IMAGE_CLASSES


def augment_image(image: Image.Image, rng: random.Random) -> Image.Image:
    """Return `image` after a random crop of at least four fifths, a flip and a colour change."""
    share = rng.uniform(0.8, 1.0)
    width, height = (int(share * each) for each in image.size)
    left = rng.randint(0, image.width - width)
    top = rng.randint(0, image.height - height)
    image = image.crop((left, top, left + width, top + height)).resize(image.size)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    image = ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.2))
    return ImageEnhance.Color(image).enhance(rng.uniform(0.8, 1.2))


class Batched(Dataset):
    """Images of an array (count, 3, px, px), a batch at a time, which waits `batch_s`."""

    def __init__(self, job: Job, images: np.ndarray, batch_s: float = 0.0):
        self.images = images
        self.batch_s = batch_s
        self.item_s = job.io_ms / 1e3

    def __getitems__(self, indices: list[int]) -> Batch:
        if seconds := self.batch_s + self.item_s * len(indices):
            time.sleep(seconds)
        places = np.array(indices) % len(self.images)
        batch = torch.from_numpy(self.images[places])  # (B, 3, px, px) uint8, copied by the index
        return batch, torch.from_numpy(places % IMAGE_CLASSES)  # (B,) int64


def endless_shuffle(count: int, seed: int, rank: int = 0, ranks: int = 1) -> Iterator[int]:
    """Yield shuffled epochs without end: the n-th sample is the same whatever the workers.

    The order is that of DataLoader(shuffle=True) after torch.manual_seed(seed).
    """
    drawn = torch.Generator().manual_seed(seed)
    while True:  # a loader draws a seed for its workers, then RandomSampler one for its order
        _seed_of_workers, order_seed = (
            int(torch.empty((), dtype=torch.int64).random_(generator=drawn)) for _ in range(2)
        )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(order_seed))
        yield from order[rank::ranks].tolist()


def in_shared_memory(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Share a batch here: with /dev/shm full, the queue's own thread would drop it in silence."""
    if get_worker_info() is None:
        return batch
    return tuple(tensor.share_memory_() for tensor in batch)


class Stalling:
    """A collate step that sleeps `stall_ms` in one of `stall_every` batches: a slow-disk spike."""

    def __init__(self, collate: Collate, job: Job):
        self.collate = collate
        self.job = job
        self.seen = 0  # batches of this worker

    def __call__(self, samples: list) -> object:
        """Collate one batch, after the stall where one is due."""
        job, worker = self.job, get_worker_info()
        batch = self.seen * worker.num_workers + worker.id if worker else self.seen
        self.seen += 1
        if batch % job.stall_every == job.stall_every - 1:
            time.sleep(job.stall_ms / 1e3)
        return self.collate(samples)


def make_dataset(job: Job, cache: Path, log: EventLog) -> Dataset:
    """Build the job's dataset, making its files first where they are missing."""
    if job.dataset == "sleep":
        shape = (NOISE_IMAGES, 3, job.image_px, job.image_px)
        noise = np.random.default_rng(job.seed).integers(0, 256, shape, dtype=np.uint8)
        return Batched(job, noise, job.prep_ms / 1e3)
    folder = image_folder(cache, job.image_px, log)
    if job.dataset == "jpeg":
        return JpegFiles(folder, job)
    return Batched(job, np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False))


def make_loader(dataset: Dataset, job: Job) -> DataLoader:
    """Build the DataLoader the job asks for."""
    batched = hasattr(dataset, "__getitems__")
    collate: Collate = in_shared_memory if batched else torch.utils.data.default_collate
    if job.stall_ms:
        collate = Stalling(collate, job)
    sampler = endless_shuffle(EPOCH, job.seed, *job.shard)
    return DataLoader(dataset, sampler=sampler, collate_fn=collate, **loader_settings(job))


def noise_batch(job: Job) -> Batch:
    """Return random images (B, 3, px, px) uint8 and labels (B,) on the host."""
    shape = (job.batch_size, 3, job.image_px, job.image_px)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    return images, torch.randint(0, IMAGE_CLASSES, shape[:1])


def loader_settings(job: Job) -> Settings:
    """Return every DataLoader's arguments in the bench: the job's knobs, and care for workers."""
    settings = {name: getattr(job, name) for name in LOADER_KNOBS}
    return settings | CARE_FOR_WORKERS if job.num_workers else settings


def draw_image(index: int, px: int) -> np.ndarray:
    """Return image `index`, (px, px, 3) uint8: a grating of its class, and film grain."""
    label = index % IMAGE_CLASSES
    rng = np.random.default_rng([RECIPE, index, px])
    rows, columns = np.mgrid[0:px, 0:px] / px
    angle = np.pi * label / IMAGE_CLASSES
    phase = rng.uniform(0, 2 * np.pi)
    frequency = rng.uniform(5, 8)
    along = columns * np.cos(angle) + rows * np.sin(angle)
    wave = np.sin(2 * np.pi * frequency * along + phase)
    tint = 0.5 + 0.4 * np.cos(2 * np.pi * (label / IMAGE_CLASSES + np.arange(3) / 3))
    image = (0.5 + 0.3 * wave)[..., None] * tint + rng.normal(0, 0.06, (px, px, 3))
    return (255 * image.clip(0, 1)).astype(np.uint8)


def image_folder(cache: Path, px: int, log: EventLog) -> Path:
    """Return a folder of JPEG files, and in images.npy the same decoded and resized to `px`.

    It is made if it is missing, and appears only when complete, whoever else is making it.
    """
    folder = cache / f"images-v{RECIPE}-{IMAGE_COUNT}x{px}px"
    if is_ours(folder):
        return folder
    log.stage(f"making {IMAGE_COUNT} images")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".", ignore_cleanup_errors=True) as part:
        images = []
        for index in range(IMAGE_COUNT):
            file = Path(part, f"{index:05d}.jpg")
            Image.fromarray(draw_image(index, 2 * px)).save(file, quality=90)
            with Image.open(file) as image:
                images.append(np.asarray(image.resize((px, px))).transpose(2, 0, 1))
        np.save(Path(part, "images.npy"), np.stack(images))  # (images, 3, px, px) uint8
        with contextlib.suppress(OSError):  # another run has finished first
            os.replace(part, folder)
    return folder
