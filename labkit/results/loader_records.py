"""What is known of a loader's processes, as data: workers, batches, slow items, a hang."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.results.columns import Columns


@dataclass(frozen=True)
class SlowItem:
    """An item that took long to fetch."""

    index: int | str  # in the dataset; of a stream, how many of the process's items came before
    ms: float
    batch: int


@dataclass(frozen=True)
class Worker:
    """One worker of a loader, over the whole run; times in ms."""

    worker: int  # its number; -1 is the main process, of a loader without workers
    processes: int  # that had this number: one for each pass, unless workers persist
    batches: int
    items: int
    p50_ms: float  # of preparing a batch
    p95_ms: float
    p99_ms: float
    busy_ms: float  # in which it prepared batches, in all
    cpu_share: float  # CPU time of the process, all threads, over the time that it prepared
    in_line_share: float  # of the time that it prepared, in which it had no core; 0: not known
    idle_share: float  # of the time from its first batch to its last, in which it prepared none
    bytes_read: int  # by system calls
    from_disk: int  # and of these from storage, not from the page cache
    item_ms: float  # mean time of an item, without that in line for a core
    item_cpu_ms: float  # mean CPU time of an item, collating included
    slowest: list[SlowItem]
    library_threads: int  # that compute in it beside its own: OpenBLAS, OpenMP, OpenCV, ...
    last_progress_s: float  # on the run's clock: when its last batch was ready


@dataclass(frozen=True)
class Batches(Columns):
    """The batches whose rows were kept, in the order of their start: an entry a batch.

    Times are in s on the run's clock. `taken` is when the loop had the batch, NaN where unknown.
    """

    worker: np.ndarray  # (batches,) int
    process: np.ndarray  # the process's id
    process_pass: np.ndarray  # the pass over the dataset, counted by the process
    of_process: np.ndarray  # how many batches its process had prepared before
    epoch: np.ndarray  # the pass of the loop
    fetched: np.ndarray
    ready: np.ndarray
    asked: np.ndarray  # when the loop began to wait for it
    taken: np.ndarray
    cpu_s: np.ndarray
    in_line_s: np.ndarray  # for which the process's thread had no core
    items: np.ndarray
    slow_s: np.ndarray  # of the slowest of them


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
