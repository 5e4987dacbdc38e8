"""Measure what an item costs to prepare, where it is prepared: in the loader's own processes.

For every item its CPU time and its true waiting (a read, a sleep) are told apart, since a waiting
worker takes no core, and both from the time it stood in line for a core, which says nothing about
the item. Rows gather in the worker and are appended to the event log ten times a second, so that a
kill costs a tenth of a second of rows at the most.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.process.events import EventLog, now_ns

with contextlib.suppress(ImportError):  # not on Windows
    import resource

GATHER_NS = 100_000_000
MOST_ROWS = 2_000  # in the log, of all workers together, about 0.5 MB: a run of days stays small
ITEMS = 16  # of a batch whose times are kept one by one; of the others, what they add up to


class ItemTimes:
    """Times one process's batches; made in the bench, used in whichever process prepares them."""

    def __init__(self, folder: Path, workers: int):
        self.folder, self.room, self.pid = folder, MOST_ROWS // max(1, workers), 0

    def begin(self, count: int) -> Callable[[], tuple[int, int, int]]:
        """Begin a batch of `count`; return the stopwatch's `lap`, which is still once rows suffice.

        The first time, open the log in the process that prepares the batches.
        """
        if self.pid != os.getpid():
            self.pid, self.rows, self.due, self.seen = os.getpid(), [], 0, 0
            self.log, self.lap = EventLog(self.folder), stopwatch()
            worker = torch.utils.data.get_worker_info()
            self.worker = -1 if worker is None else worker.id  # -1: the training loop itself
            self.process_ns = time.process_time_ns()
        self.items = []
        if self.seen >= self.room:
            return lambda: (0, 0, 0)
        self.between_ns = time.process_time_ns() - self.process_ns
        self.start_ns, self.count = now_ns(), count
        self.lap()
        return self.lap

    def collated(self) -> None:
        """End the batch, whose `count` samples took `items`: one by one, or all in one lap."""
        if self.seen >= self.room:
            return
        collate = self.lap()
        self.process_ns = time.process_time_ns()
        number, self.seen = self.seen, self.seen + 1
        sums = [sum(column) for column in zip(*self.items, strict=True)]
        kept = self.items[:: -(-len(self.items) // ITEMS)] if len(self.items) > 1 else []
        row = [number, self.start_ns, self.count, *map(_us, (*sums, *collate, self.between_ns))]
        self.rows.append([*row, [_us(i[0]) for i in kept], [_us(i[1]) for i in kept]])
        if self.start_ns > self.due or self.seen == self.room:
            self.due = self.start_ns + GATHER_NS
            self.log.write("items", worker=self.worker, rows=self.rows)
            self.rows = []


def stopwatch() -> Callable[[], tuple[int, int, int]]:
    """Return `lap()`: this thread's ns of CPU time, waiting, and standing in line since the last.

    It takes about 1.7 µs. Who did not give up the core of its own will has not waited: the system's
    account of the time in line alone misses a third of it.
    """
    queue = None
    with contextlib.suppress(OSError):  # Linux; elsewhere standing in line looks like waiting
        queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def read() -> tuple[int, int, int, int]:
        line_ns, gave_up = 0, 0
        if queue is not None:
            line_ns = int(os.pread(queue, 64, 0).split()[1])
            gave_up = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time_ns(), line_ns, gave_up, now_ns()

    def lap() -> tuple[int, int, int]:
        nonlocal last
        before, last = last, read()
        cpu, line, gave_up, wall = (b - a for a, b in zip(before, last, strict=True))
        if queue is not None and not gave_up:
            line = max(0, wall - cpu)
        return cpu, max(0, wall - cpu - line), line

    last = read()
    return lap


class TimedDataset(torch.utils.data.Dataset):
    """A dataset whose batches are timed; hands on the same samples in the same order."""

    def __init__(self, dataset: Any, times: ItemTimes):
        self.dataset, self.times = dataset, times

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, tickets: list) -> Any:
        lap = self.times.begin(len(tickets))
        if hasattr(self.dataset, "__getitems__"):
            batch = self.dataset.__getitems__(tickets)
            self.times.items.append(lap())
            return batch
        batch = []
        for ticket in tickets:
            batch.append(self.dataset[ticket])
            self.times.items.append(lap())
        return batch


class TimedCollate:
    """A collate step that ends the timing of its batch."""

    def __init__(self, collate: Callable, times: ItemTimes):
        self.collate, self.times = collate, times

    def __call__(self, samples: Any) -> Any:
        """Collate one batch."""
        batch = self.collate(samples)
        self.times.collated()
        return batch


def _us(ns: int) -> float:
    return round(ns / 1e3, 1)
