"""The reader's own dataset and step in the bench, fed through a DataLoader without end."""

from __future__ import annotations

import os
import pickle
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from labkit.bench import data
from labkit.bench.by_value import send_by_value
from labkit.bench.user_step import OwnStep
from labkit.instruments import batch_contents
from labkit.instruments.batch_contents import Batch
from labkit.orders import UserSource
from labkit.spec import Job

ONE = torch.empty(1)  # expanded, it counts samples and holds none


def fetch(source: UserSource, folder: Path) -> dict[str, Any]:
    """Return what the user's kernel sent, for this process only; relative paths are theirs."""
    os.chdir(source["cwd"])
    sys.path += [place for place in source["path"] if place not in sys.path]
    return pickle.loads((folder / source["payload"]).read_bytes())


def prepare(source: UserSource, job: Job, folder: Path) -> tuple[OwnStep, EndlessBatches]:
    """Return what trains, and the loader that feeds it; raise where the reader's parts do not."""
    torch.manual_seed(job.seed)
    try:
        parts = fetch(source, folder)
        for name, part in parts.items():
            parts[name] = pkgutil.resolve_name(part) if isinstance(part, str) else part
    finally:
        (folder / source["payload"]).unlink(missing_ok=True)
    dataset = parts["dataset"]
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        dataset = dataset()  # what makes it
    dataset = checked(dataset)
    sampler = None
    if not isinstance(dataset, IterableDataset):
        sampler = data.EndlessShuffle(len(dataset), job.seed)
    send_by_value()
    settings = data.loader_settings(job)
    collate = parts.get("collate_fn")  # None for PyTorch's own
    loader = DataLoader(dataset, collate_fn=collate, sampler=sampler, **settings)
    return OwnStep(parts.get("step"), job), EndlessBatches(loader, job)


def checked(dataset: Any) -> Any:
    """Return `dataset` if a DataLoader can use it again and again; raise TypeError if not."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        need = "it needs __len__ and __getitem__, or to be an IterableDataset."
        raise TypeError(f"{kind} is not a dataset: {need}")
    if not len(dataset):
        raise ValueError(f"{kind} is empty: there is no item to load.")
    return dataset


class EndlessBatches:
    """The loader's batches without end, each with how many samples it holds."""

    def __init__(self, loader: DataLoader[object], job: Job):
        self.loader = loader
        self.job = job
        self.streams = isinstance(loader.dataset, IterableDataset)
        self.tensors: tuple[torch.Tensor, ...] = ()  # of the first batch

    def __iter__(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        return self._endless(iter(self.loader))  # which starts the workers

    def _endless(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, torch.Tensor]]:
        is_first = True
        first: list[Batch] = []  # of each worker, and one more
        size = self.job.batch_size
        while True:
            batch = None
            for batch in batches:
                if is_first:
                    self.tensors = tuple(filter(torch.is_tensor, batch_contents.leaves(batch)))
                    is_first = False
                if self.streams and len(first) <= self.job.num_workers:
                    first.append(batch)
                    self._compare(first)
                # in place of the labels, which only the reader knows
                count = batch_contents.samples_in(batch, size) if self.streams else None
                yield batch, ONE.expand(count or size)  # the last of a stream may be short
            if batch is None:
                raise RuntimeError(
                    "a pass over the dataset gave no batch: is it a one-shot iterator? Its "
                    "__iter__ has to begin anew each time."
                )
            batches = iter(self.loader)

    def _compare(self, first: list[Batch]) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        workers = self.job.num_workers
        if workers < 2 or len(first) <= workers:
            return
        if are_same(first[0], first[1]) and not are_same(first[0], first[-1]):
            raise RuntimeError(
                f"each of {workers} workers streams the same samples: with an IterableDataset "
                "use torch.utils.data.get_worker_info() to give each worker its own share, "
                "or stay at num_workers=1."
            )


def are_same(one: Batch, other: Batch) -> bool:
    """Return whether two batches of a loader hold the same."""
    pairs = zip(batch_contents.leaves(one), batch_contents.leaves(other), strict=False)
    return all(
        torch.equal(a, b) if torch.is_tensor(a) and torch.is_tensor(b) else repr(a) == repr(b)
        for a, b in pairs
    )
