"""Sending what was defined in a notebook to workers that are spawned, which cannot import it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset


class ByValue:
    """What workers that are spawned can be sent although it was defined in a notebook."""

    def __init__(self, what: Any):
        self.what = what

    def __getstate__(self) -> bytes:
        import cloudpickle

        return cloudpickle.dumps(self.what)

    def __setstate__(self, state: bytes) -> None:
        self.what = pickle.loads(state)

    def __call__(self, *given: Any) -> Any:
        """Call it."""
        return self.what(*given)


class MapByValue(ByValue, Dataset):
    """A dataset by index, sent by value."""

    def __len__(self) -> int:
        return len(self.what)

    def __getitem__(self, index: int) -> Any:
        return self.what[index]

    def __getitems__(self, indices: list[int]) -> Any:
        return self.what.__getitems__(indices)


class StreamByValue(ByValue, IterableDataset):
    """A stream, sent by value."""

    def __iter__(self) -> Iterator:
        return iter(self.what)


def sendable(dataset: Any) -> ByValue:
    """Return `dataset` so that a spawned worker can be sent it."""
    return StreamByValue(dataset) if isinstance(dataset, IterableDataset) else MapByValue(dataset)
