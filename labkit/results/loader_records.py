"""What is known of a loader's processes, as data: slow items, a cache, a hang."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlowItem:
    """An item that took long to fetch."""

    index: int | str  # in the dataset; of a stream, how many of the process's items came before
    ms: float
    batch: int

    def __str__(self) -> str:
        return f"{self.index} ({self.ms:.0f} ms)"


@dataclass(frozen=True)
class LostCache:
    """What the dataset kept in its workers, and what ended with them."""

    name: str  # "self.cache"
    entries: float  # of a worker's process, on average
    items: float  # that it prepared


@dataclass(frozen=True)
class Hang:
    """A stretch to the end of the record in which nothing moved."""

    worker: int | None  # that held the loop up; None: its own process
    index: int | str | None  # of the item
    seconds: float  # how long it lasted, as far as is known
