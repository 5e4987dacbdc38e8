"""The reader's own dataset and step in the bench, fed through a DataLoader without end."""

from __future__ import annotations

import multiprocessing.reduction
import os
import pickle
import pkgutil
import sys
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any

import cloudpickle
import torch
from torch import nn
from torch.utils.data import DataLoader

from labkit.bench import data
from labkit.instruments.batch_contents import Batch
from labkit.orders import Order
from labkit.spec import Job

NO_LOSS = torch.tensor(float("nan"))
ONE = torch.empty(1)  # expanded, it counts samples and holds none


class WorkersPickler(cloudpickle.Pickler):
    """Pickles tensors and connections as multiprocessing does, and a notebook's classes by value.

    For loader workers that are started anew (spawn, forkserver): a notebook is no module.
    """

    # On the class, where the C pickler looks; a live view, for torch may register more
    dispatch_table = ChainMap(
        ForkingPickler._extra_reducers,  # pyright: ignore[reportAttributeAccessIssue]
        dict(cloudpickle.Pickler.dispatch_table),
    )


def dump_for_worker(what: object, file: IO[bytes], protocol: int | None = None) -> None:
    """Take the place of `multiprocessing.reduction.dump`, which sends classes by name only."""
    WorkersPickler(file, protocol).dump(what)


def fetch(source: Order, folder: Path) -> dict[str, Any]:
    """Return what the user's kernel sent, for this process only; relative paths are theirs."""
    multiprocessing.reduction.dump = dump_for_worker
    os.chdir(source["cwd"])
    sys.path += [place for place in source["path"] if place not in sys.path]
    payload = folder / source["payload"]
    sent = payload.read_bytes()
    payload.unlink()
    return pickle.loads(sent)


def prepare(source: Order, job: Job, folder: Path) -> tuple[OwnStep, EndlessLoader]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    parts = fetch(source, folder)
    for name, part in parts.items():
        parts[name] = pkgutil.resolve_name(part) if isinstance(part, str) else part
    dataset = parts["dataset"]
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        dataset = dataset()  # what makes it
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"{dataset!r} is not a dataset: it needs __len__ and __getitem__.")
    if not len(dataset):
        raise ValueError(f"{dataset!r} is empty: there is no item to load.")
    loader = EndlessLoader(
        dataset,
        collate_fn=parts.get("collate_fn"),  # None for PyTorch's own
        sampler=data.endless_shuffle(len(dataset), job.seed),
        **data.loader_settings(job),
    )
    return OwnStep(parts.get("step"), job), loader


class EndlessLoader(DataLoader):
    """A loader whose batches come with as many numbers as they hold samples."""

    def __iter__(self) -> Any:
        batches = super().__iter__()  # which starts the workers
        counted = ONE.expand(self.batch_size or 1)  # for the labels, which only the reader knows
        return ((batch, counted) for batch in batches)


class OwnStep:
    """The reader's step in the place of the bench's own Trainer.

    Without one the loop only takes the batches: nothing is busy, and what is measured is the loader
    alone.
    """

    side_stream = None

    def __init__(self, step: Callable[[Batch], object] | None, job: Job):
        self.device = torch.device(job.device)
        self.step = step or (lambda _batch: None)
        self.model = nn.Identity()

    def to_device(self, images: Batch, labels: torch.Tensor, /) -> tuple[Batch, torch.Tensor]:
        """Return the batch as it is: copying it is the step's business."""
        return images, labels

    def compute(self, images: Batch, _counted: torch.Tensor, /, update: bool) -> torch.Tensor:
        """Do the reader's step on a batch; return NaN, as its loss may be anywhere."""
        self.step(images)
        return NO_LOSS

    def after_step(self) -> None:
        """Go on."""
