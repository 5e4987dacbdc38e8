"""The reader's own dataset and step in the bench, fed through a DataLoader without end."""

from __future__ import annotations

import os
import pickle
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from labkit.bench import data
from labkit.bench.by_value import send_by_value
from labkit.instruments import batch_contents
from labkit.instruments.batch_contents import Batch
from labkit.orders import Order
from labkit.spec import Job

NO_LOSS = torch.tensor(float("nan"))
ONE = torch.empty(1)  # expanded, it counts samples and holds none


def fetch(source: Order, folder: Path) -> dict[str, Any]:
    """Return what the user's kernel sent, for this process only; relative paths are theirs."""
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
    sampler = None
    if not isinstance(dataset, IterableDataset):
        sampler = data.EndlessShuffle(count_of(dataset), job.seed)
    send_by_value()
    collate = parts.get("collate_fn")  # None for PyTorch's own
    how = data.loader_settings(job)
    return OwnStep(parts.get("step"), job), EndlessLoader(
        dataset, collate_fn=collate, sampler=sampler, **how
    )


def count_of(dataset: Any) -> int:
    """Return how many items a dataset has; raise where a DataLoader can load none of it."""
    kind = type(dataset).__name__
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        need = "it needs __len__ and __getitem__, or to be an IterableDataset."
        raise TypeError(f"{kind} is not a dataset: {need}")
    if not len(dataset):
        raise ValueError(f"{kind} is empty: there is no item to load.")
    return len(dataset)


class EndlessLoader(DataLoader):
    """A loader whose batches have no end, each with how many samples it holds."""

    def __iter__(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        return self._endless(super().__iter__())  # which starts the workers

    def _endless(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, torch.Tensor]]:
        is_stream = isinstance(self.dataset, IterableDataset)
        first: list[str] = []  # batches of a stream: one of each worker, and one more
        while True:
            batch = None
            for batch in batches:
                if is_stream and len(first) <= self.num_workers:
                    first.append(repr(batch))
                    self._compare(*first)
                # in place of the labels, which only the reader knows
                count = batch_contents.samples_in(batch, self.batch_size) if is_stream else None
                yield batch, ONE.expand(count or self.batch_size)  # a stream's last may be short
            if batch is None:
                raise RuntimeError(
                    "a pass over the dataset gave no batch: is it a one-shot iterator? Its "
                    "__iter__ has to begin anew each time."
                )
            batches = super().__iter__()

    def _compare(self, one: str, *others: str) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        if 1 < self.num_workers == len(others) and one == others[0] != others[-1]:
            raise RuntimeError(
                f"each of {self.num_workers} workers streams the same samples: with an "
                "IterableDataset use torch.utils.data.get_worker_info() to give each worker its "
                "own share, or stay at num_workers=1."
            )


class OwnStep:
    """The reader's step in the place of the bench's own Trainer.

    Without one the loop only takes the batches: nothing is busy, and what is measured is the loader
    alone.
    """

    side_stream = None

    def __init__(self, step: Callable[[Batch], object] | None, job: Job):
        self.job = job
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
