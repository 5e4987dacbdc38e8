"""The reader's own dataset in the bench, fed through a DataLoader. Batches do not end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labkit.bench import batch_contents
from labkit.bench.batch_contents import Batch
from labkit.spec import Job

ONE = torch.empty(1)  # expanded, it counts samples and holds none


def checked(dataset: Any) -> Any:
    """Return `dataset` if a DataLoader can use it again and again; raise TypeError if not."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        once = " can be read once only, and" if hasattr(dataset, "__next__") else ""
        need = "it needs __len__ and __getitem__, or to be an IterableDataset."
        raise TypeError(f"{kind}{once} is not a dataset: {need}")
    if not len(dataset):
        raise ValueError(f"{kind} is empty: there is no item to load.")
    return dataset


class NamesTheItem(Dataset):
    """The reader's dataset; errors name the item."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> object:
        return self._fetch("__getitem__", index)

    def _batch(self, indices: list[int]) -> object:
        return self._fetch("__getitems__", indices)

    def _fetch(self, how: str, which: object) -> object:
        try:
            return getattr(self.dataset, how)(which)
        except Exception as error:
            call = f"dataset[{which}]" if how == "__getitem__" else f"dataset.{how}({which})"
            raise RuntimeError(f"{call} failed: {type(error).__name__}: {error}") from error


class EndlessBatches:
    """The loader's batches without end, each with how many samples it holds."""

    def __init__(self, loader: DataLoader[object], job: Job):
        self.loader = loader
        self.job = job
        self.streams = isinstance(loader.dataset, IterableDataset)
        self.taken = 0
        self.tensors: tuple[torch.Tensor, ...] = ()  # of the first batch
        self.first_values: list[list[object]] = []  # of a stream's first batches
        self.count: Callable[[Batch], int] = lambda _: job.batch_size

    def __iter__(self) -> EndlessBatches:
        self.iterator = iter(self.loader)  # starts the workers
        return self

    def __next__(self) -> tuple[Batch, torch.Tensor]:
        try:
            batch = next(self.iterator)
        except StopIteration:
            batch = self._again()
        if self.streams and self.taken <= self.job.num_workers:
            self._compare(batch)
        if not self.taken:
            leaves = batch_contents.leaves(batch)
            self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            if self.streams:  # their last batch may be short
                self.count = batch_contents.counter_for(batch, self.job.batch_size) or self.count
        self.taken += 1
        # in place of the labels, which only the reader knows
        return batch, ONE.expand(self.count(batch))

    def _again(self) -> Batch:
        """Begin the next pass over a stream that has ended."""
        if self.taken:
            self.iterator = iter(self.loader)
            with contextlib.suppress(StopIteration):
                return next(self.iterator)
        raise RuntimeError(
            f"the dataset gave {self.taken} batches and then none: is it a one-shot iterator? "
            "Its __iter__ has to begin anew each time."
        )

    def _compare(self, batch: Batch) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        workers = self.job.num_workers
        if workers < 2:
            return
        values: list[object] = []
        for leaf in batch_contents.leaves(batch):
            values.append(_bytes_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf))
        self.first_values.append(values)
        if len(self.first_values) == workers + 1:
            first, second, *_, again = self.first_values
            if first == second and again != first:
                raise RuntimeError(
                    f"each of {workers} workers streams the same samples: with an IterableDataset "
                    "use torch.utils.data.get_worker_info() to give each worker its own share, "
                    "or stay at num_workers=1."
                )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's numbers, in any format, on any device."""
    flat = tensor.detach().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()  # NumPy knows no bfloat16
