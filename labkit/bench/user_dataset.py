"""The reader's own dataset in the bench, fed through a DataLoader. Batches do not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from labkit.instruments import batch_contents
from labkit.instruments.batch_contents import Batch
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
        self.tensors: tuple[torch.Tensor, ...] = ()  # of the first batch

    def __iter__(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        return self._endless(iter(self.loader))  # which starts the workers

    def _endless(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, torch.Tensor]]:
        first: list[Batch] = []  # of each worker, and one more
        size = self.job.batch_size
        count: Callable[[Batch], int] | None = None
        while True:
            batch = None
            for batch in batches:
                if not first:
                    self.tensors = tuple(filter(torch.is_tensor, batch_contents.leaves(batch)))
                    if self.streams:  # their last batch may be short
                        count = batch_contents.counter_for(batch, size)
                if len(first) <= self.job.num_workers:
                    first.append(batch)
                    self._compare(first)
                # in place of the labels, which only the reader knows
                yield batch, ONE.expand(size if count is None else count(batch))
            if batch is None:
                raise RuntimeError(
                    "a pass over the dataset gave no batch: is it a one-shot iterator? Its "
                    "__iter__ has to begin anew each time."
                )
            batches = iter(self.loader)

    def _compare(self, first: list[Batch]) -> None:
        """Raise where every worker streams the same samples: they would all be trained on twice."""
        workers = self.job.num_workers
        if not self.streams or workers < 2 or len(first) <= workers:
            return
        one, other, *_, again = map(_values, first)
        if one == other and again != one:
            raise RuntimeError(
                f"each of {workers} workers streams the same samples: with an IterableDataset "
                "use torch.utils.data.get_worker_info() to give each worker its own share, "
                "or stay at num_workers=1."
            )


def _values(batch: Batch) -> list[object]:
    """Return what is in a batch, so that it can be compared."""
    leaves = batch_contents.leaves(batch)
    return [_bytes_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's numbers, in any format, on any device."""
    flat = tensor.detach().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()  # NumPy knows no bfloat16
