"""The batches of the reader's own loader, without an end: the run says when to stop.

So no batch is prepared without the competition of others, as the last ones of a pass would be.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from labkit.bench import their_loop

ONE = torch.empty(1)  # expanded, it counts samples and holds none


class Endless(Sampler):
    """Shuffled passes over the dataset without end: no batch is prepared without competition."""

    def __init__(self, count: int, seed: int):
        self.count, self.seed = count, seed

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed)
        while True:
            yield from rng.sample(range(self.count), self.count)


class EndlessLoader:
    """A DataLoader whose batches do not end: the run says when to stop."""

    def __init__(self, loader: DataLoader, job: SimpleNamespace):
        self.loader, self.job = loader, job

    def __iter__(self) -> Batches:
        return Batches(self.loader, self.job)


class Batches:
    """The loader's batches without end, each with how many samples it holds."""

    def __init__(self, loader: DataLoader, job: SimpleNamespace):
        self.loader, self.job = loader, job
        self.iterator = iter(loader)  # starts the workers
        self.streams = isinstance(loader.dataset, IterableDataset)
        self.taken, self.count, self.marks, self.tensors = 0, None, [], ()

    def __next__(self) -> tuple[Any, torch.Tensor]:
        try:
            batch = next(self.iterator)
        except StopIteration:
            batch = self._again()
        if self.streams and self.taken <= self.job.num_workers:
            self._compare(batch)
        if not self.taken:
            self.tensors = tuple(tensor for tensor in leaves(batch) if torch.is_tensor(tensor))
            if self.streams:  # their last batch may be short
                self.count = their_loop.counter_for(batch, self.job.batch_size)
        self.taken += 1
        count = self.count(batch) if self.count else self.job.batch_size
        return batch, ONE.expand(count)  # in place of the labels, which only the reader knows

    def _again(self) -> Any:
        """Begin the next pass over a stream that has ended."""
        if self.taken:
            self.iterator = iter(self.loader)
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
        raise RuntimeError(
            f"the dataset gave {self.taken} batches and then none at all: is it a one-shot "
            "iterator? Its __iter__ has to begin anew each time."
        )

    def _compare(self, batch: Any) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        self.marks.append(mark(batch))
        workers = self.job.num_workers
        if workers > 1 and len(self.marks) == workers + 1:
            first, second, *_, again = self.marks
            if first == second and again != first:
                raise RuntimeError(
                    f"each of {workers} workers streams the same samples: with an IterableDataset "
                    "use torch.utils.data.get_worker_info() to give each worker its own share, "
                    "or stay at num_workers=1."
                )


def leaves(batch: Any) -> Iterator[Any]:
    """Yield what is in a batch, however deep in tuples and mappings."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            yield from leaves(part)
    else:
        yield batch


def mark(batch: Any) -> tuple:
    """Return what tells one batch from another: its values."""
    return tuple(
        leaf.numpy().tobytes() if torch.is_tensor(leaf) else repr(leaf) for leaf in leaves(batch)
    )
