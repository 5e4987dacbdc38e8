"""What a DataLoader's process does for each batch: how long it takes, on what, and since when.

`labkit.instruments.loader_hook` calls it. Rows of batches are written ten times a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import psutil

from labkit.instruments.hangs import (
    BATCH,
    FETCHING,
    IDLE,
    INDEX,
    NO_INDEX,
    SINCE,
    STATE,
    index_word,
    progress_words,
)
from labkit.stamps.events import EventLog, now_ns

try:
    import resource
except ImportError:  # Windows, where there is no /proc
    resource = None

WRITE_NS = 100_000_000  # between two writes of a process
MOST_ROWS = 2_000  # of all workers together, 0.7 MB; then every second batch, every fourth, ...


class BatchRow(NamedTuple):
    """A batch: moments and times in ns. In an `items` event it is a list in this order."""

    done: int  # batches of this process before it
    batch: int  # its number in the pass, where a worker made it; else as `done`
    of_pass: int
    start: int
    fetched: int  # all items are there
    ready: int  # it is collated
    cpu_ns: int
    items: int


class ItemTimes(NamedTuple):
    """A batch of the bench, whose items were timed one by one: times in µs, of the thread."""

    done: int  # batches of this process before it
    start_ns: int
    items: int
    cpu: float  # CPU time of all items together
    wait: float  # time of all items in which no core was wanted
    line: float  # time of all items in line for a core
    collate_cpu: float
    collate_wait: float
    collate_line: float
    between: float  # CPU time of the process, all threads, since the batch before
    one_by_one: bool  # whether its items were asked for so, and not all at once


def in_line_ns(thread: str | Path) -> int:
    """Return for how long a thread, a folder in /proc, has stood in line for a core, ns.

    It is 0 where the system does not tell. The file is open only while it is read, as a program may
    close or count the descriptors that it has.
    """
    with contextlib.suppress(OSError, IndexError), open(f"{thread}/schedstat", "rb", 0) as file:
        return int(file.read(64).split()[1])
    return 0


def library_threads() -> int:
    """Return how many threads that Python has not started compute beside the one that asks.

    That is, they have had a quarter of its CPU time or more.
    """
    python = {thread.native_id for thread in threading.enumerate()}
    least_s = max(time.thread_time() / 4, 0.01)  # what the system counts in
    threads = psutil.Process().threads()
    return sum(
        each.id not in python and each.user_time + each.system_time >= least_s for each in threads
    )


class ThreadClock:
    """The time of a thread of the bench, from lap to lap. A lap takes 1.7 µs."""

    def __init__(self):
        self.file = -1  # without one, standing in line looks like waiting
        with contextlib.suppress(OSError):  # Linux only
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.before = self._read()

    def _read(self) -> tuple[int, int, int, int]:
        in_line = waits = 0  # the second: for which the thread gave its core up
        if resource is not None and self.file >= 0:
            in_line = int(os.pread(self.file, 64, 0).split()[1])
            waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.thread_time_ns(), in_line, waits, now_ns()

    def lap(self) -> tuple[int, int, int]:
        """Return the CPU time, the waiting and the standing in line for a core since, ns."""
        before, self.before = self.before, self._read()
        cpu, in_line, waits, wall = (
            new - old for old, new in zip(before, self.before, strict=True)
        )
        if self.file >= 0 and not waits:
            in_line = max(0, wall - cpu)
        return cpu, max(0, wall - cpu - in_line), in_line


class LoaderWork:
    """Times the batches of one process of a loader, and writes them into the run's log."""

    def __init__(
        self,
        log: EventLog,
        worker: int,
        while_there: Path | None = None,
        most_rows: int = MOST_ROWS,
    ):
        """Begin in this process; `worker` is -1 in the main one.

        `while_there` is a file that is there while a watched loop goes on: the progress is kept
        beside it. Without one the run is the bench's: items are timed one by one.
        """
        self.log = log
        self.worker = worker
        self.pid = os.getpid()
        self.while_there = while_there
        self.over = False
        where = while_there.parent if while_there else None
        self.words = progress_words(where, "main" if worker < 0 else worker)
        self.clock = ThreadClock() if while_there is None else None  # of items one by one
        self.passes = -1
        self.done = 0
        self.most_rows = most_rows
        self.due = 0  # to write
        self.rows: list[BatchRow] = []  # that are not written yet
        self.item_times: list[ItemTimes] = []
        self.process_ns = time.process_time_ns()

    def begin_pass(self, streams: bool) -> None:
        """Begin a pass over the dataset, which `streams` its samples where it is iterable."""
        self.passes += 1
        self.streams = streams

    @property
    def is_on(self) -> bool:
        """Whether this goes on, here and in no process that was forked from this one."""
        return not self.over and self.pid == os.getpid()

    def begin(self, number: object, indices: object) -> None:
        """Begin batch `number` of the pass, of the items at `indices` where the dataset has any."""
        known = type(indices) in (list, tuple) and not self.streams
        self.indices: Sequence[object] = cast(list, indices) if known else ()
        self.fetched = 0  # until all items are there
        halvings = (self.done // self.most_rows).bit_length()
        self.is_kept = self.done % 2**halvings == 0
        self.singly = self.clock if self.is_kept and not self.streams else None
        self.laps: list[tuple[int, int, int]] = []  # between the moments, and before the first
        self.cpu_ns = time.process_time_ns()
        self.words[BATCH] = number if type(number) is int else self.done
        self.items = 0  # that were asked for; of a stream, that came
        self.start = self._note(FETCHING)

    def _note(self, state: int) -> int:
        """Note what the process does from now on; return the time."""
        if self.singly:
            self.laps.append(self.singly.lap())
        now = self.words[SINCE] = now_ns()
        self.words[STATE] = state
        return now

    def next_item(self) -> None:
        """An item is asked for, so the one before it is there."""
        if not self.over:
            known = self.items < len(self.indices)
            self.words[INDEX] = index_word(self.indices[self.items] if known else None)
            self._count()

    def end_streamed(self, item: object) -> object:
        """Note that an item of a stream is there, and return it."""
        if not self.over:
            self._count()
        return item

    def _count(self) -> None:
        self.items += 1
        self._note(FETCHING)

    def begin_collate(self) -> None:
        """All items are here."""
        self.words[INDEX] = NO_INDEX
        self.fetched = self._note(FETCHING)

    def end_fetch(self) -> None:
        """The batch is ready, or an item could not be had."""
        ready = self._note(IDLE)
        if self.fetched:
            cpu_ns = time.process_time_ns()
            if self.is_kept:
                self._keep(ready, cpu_ns)
            self.process_ns = cpu_ns
            self.done += 1
        if ready > self.due:
            self.due = ready + WRITE_NS
            self.flush()
            if self.while_there and not self.while_there.exists():
                self.over = True  # a worker that persists goes on without us

    def _keep(self, ready: int, cpu_ns: int) -> None:
        """Keep the row of a batch that is ready, and those of its items, to be written."""
        count = len(self.indices) or self.items
        number = (self.done, self.words[BATCH], self.passes)
        moments = (self.start, self.fetched, ready)
        self.rows.append(BatchRow(*number, *moments, cpu_ns - self.cpu_ns, count))
        if self.laps:
            _, *items, collate = self.laps
            parts = [*map(sum, zip(*items, strict=True)), *collate, self.cpu_ns - self.process_ns]
            times = [round(part / 1e3, 1) for part in parts]
            self.item_times.append(
                ItemTimes(self.done, self.start, count, *times, one_by_one=len(items) > 2)
            )

    def flush(self) -> None:
        """Write the rows that are not written yet."""
        if self.rows and self.pid == os.getpid():
            self.log.write(
                "items",
                worker=self.worker,
                pid=self.pid,
                rows=self.item_times,
                batches=self.rows,
                threads=library_threads() if self.worker >= 0 else None,
            )
        self.rows = []
        self.item_times = []
