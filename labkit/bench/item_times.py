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

    def begin(self) -> bool:
        """Begin a batch; return whether it is to be timed: not once there are rows enough.

        The first time, open the log in the process that prepares the batches.
        """
        if self.pid != os.getpid():
            self.pid, self.rows, self.due, self.seen = os.getpid(), [], 0, 0
            self.log, self.lap = EventLog(self.folder), stopwatch()
            worker = torch.utils.data.get_worker_info()
            self.worker = -1 if worker is None else worker.id  # -1: the training loop itself
            self.process_ns = time.process_time_ns()
        if self.seen >= self.room:
            return False
        self.between_ns = time.process_time_ns() - self.process_ns
        self.start_ns = now_ns()
        self.lap()
        return True

    def end(self, count: int, items: list[tuple], collate: tuple) -> None:
        """End a batch of `count` samples: laps of each, or one of all, and one of the collating."""
        self.process_ns = time.process_time_ns()
        number, self.seen = self.seen, self.seen + 1
        sums = [sum(column) for column in zip(*items, strict=True)]
        kept = items[:: -(-len(items) // ITEMS)] if len(items) > 1 else []
        row = [number, self.start_ns, count, *map(_us, (*sums, *collate, self.between_ns))]
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
    """A dataset that hands on collated batches, timed; the same samples in the same order."""

    def __init__(self, dataset: Any, collate: Callable, times: ItemTimes):
        self.dataset, self.collate, self.times = dataset, collate, times

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, tickets: list) -> Any:
        lap = self.times.lap if (timed := self.times.begin()) else lambda: ()
        if hasattr(self.dataset, "__getitems__"):
            samples, items = self.dataset.__getitems__(tickets), [lap()]
        else:
            samples, items = [], []
            for ticket in tickets:
                samples.append(self.dataset[ticket])
                items.append(lap())
        batch = self.collate(samples)
        if timed:
            self.times.end(len(tickets), items, lap())
        return batch


def collated(batch: Any) -> Any:
    """Return the batch: the collate step of a TimedDataset, which has done it."""
    return batch


def _us(ns: int) -> float:
    return round(ns / 1e3, 1)
