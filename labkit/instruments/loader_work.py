"""What a DataLoader's process does for each batch: how long it takes, on what, and since when.

`labkit.instruments.loader_hook` calls it. Rows of batches are written ten times a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
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
    plain_index,
    progress_words,
)
from labkit.instruments.loader_clocks import LibraryThreads, ThreadClock
from labkit.process.thinning import Thinning
from labkit.stamps.events import EventLog, now_ns

WRITE_NS = 100_000_000  # between two writes of a process
MOST_ROWS = 2_000  # of all workers together, 0.7 MB; then every second batch, every fourth, ...
# Of a loader whose workers start anew for each pass, so many starts are recorded, with as many rows
# each; then every second start, every fourth, ..., with fewer and fewer rows
STARTS = 16
KEPT_ITEMS = 16  # of a batch whose times are written one by one; of the others, the sum
MEMORY_NS = 3_000_000_000  # between two looks at a process's memory: some ms for each GiB


class BatchRow(NamedTuple):
    """A batch: moments and times in ns. In an `items` event it is a list in this order."""

    done: int  # batches of this process before it
    batch: int  # its number in the pass
    of_pass: int
    start: int
    fetched: int  # all items are there
    ready: int  # it is collated
    cpu_ns: int
    items: int
    slow_ns: int  # of the slowest of them
    line_ns: int  # in line for a core; 0 in the loop's own process
    slow_index: int | str  # of a stream, how many items of the pass came before it


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
    item_cpu: list[float]  # of single items
    item_wait: list[float]


class LoaderWork:
    """Times the batches of one process of a loader, and writes them into the run's log."""

    def __init__(
        self,
        log: EventLog | None,
        worker: int,
        while_there: Path | None = None,
        most_rows: int = MOST_ROWS,
    ):
        """Begin in this process; `worker` is -1 in the main one. Without a `log` nothing is kept.

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
        # A batch of a watched loop without workers may take less time than a lap
        self.clock = ThreadClock() if worker >= 0 or while_there is None else None
        self.threads = LibraryThreads() if worker >= 0 else None
        self.memory_due = 0
        self.passes = -1
        self.done = 0
        self.kept = Thinning(most_rows)  # batches
        self.due = 0  # to write
        self.rows: list[BatchRow] = []  # that are not written yet
        self.item_times: list[ItemTimes] = []
        self.process_ns = time.process_time_ns()

    def begin_pass(self, streams: bool) -> None:
        """Begin a pass over the dataset, which `streams` its samples where it is iterable."""
        self.passes += 1
        self.in_pass = 0  # batches
        self.streams = streams
        self.streamed = 0  # items of the pass, where they came singly

    @property
    def is_on(self) -> bool:
        """Whether this goes on, here and in no process that was forked from this one."""
        return not self.over and self.pid == os.getpid()

    def begin(self, number: object, indices: object) -> None:
        """Begin batch `number` of the pass, of the items at `indices` where the dataset has any."""
        self.batch = number if type(number) is int else self.in_pass
        known = type(indices) in (list, tuple) and not self.streams
        self.indices: Sequence[object] = cast(list, indices) if known else ()
        self.moments: list[int] = []  # at which single items were asked for; of a stream, came
        self.is_collating = False
        self.is_kept = self.kept.keeps()
        is_timed = self.is_kept and self.while_there is None and not self.streams
        self.singly = self.clock if is_timed else None  # of items one by one
        self.laps: list[tuple[int, int, int]] = []
        if self.singly:
            self.singly.lap()
        self.cpu_ns = time.process_time_ns()
        self.line_ns = self.clock.in_line.now() if self.clock else 0
        words = self.words
        words[BATCH] = self.batch
        words[STATE] = FETCHING
        self.start = words[SINCE] = now_ns()

    def next_item(self) -> None:
        """An item is asked for, so the one before it is there."""
        if self.over:
            return
        asked = len(self.moments)
        if self.singly and asked:
            self.laps.append(self.singly.lap())
        self.words[INDEX] = index_word(self.indices[asked] if asked < len(self.indices) else None)
        self._note()

    def end_streamed(self, item: object) -> object:
        """Note that an item of a stream is there, and return it."""
        if not self.over:
            self._note()
        return item

    def _note(self) -> None:
        now = self.words[SINCE] = now_ns()
        self.moments.append(now)

    def begin_collate(self) -> None:
        """All items are here."""
        if self.singly:
            self.laps.append(self.singly.lap())
        self.fetched = self.words[SINCE] = now_ns()
        self.words[INDEX] = NO_INDEX
        self.is_collating = True

    def end_fetch(self) -> None:
        """The batch is ready, or an item could not be had."""
        collate = self.singly.lap() if self.singly else None
        ready = now_ns()
        if self.is_collating:
            line_ns = self.clock.in_line.now() - self.line_ns if self.clock else 0
            cpu_ns = time.process_time_ns()
            if self.is_kept:
                self._keep(ready, line_ns, cpu_ns, collate)
            self.process_ns = cpu_ns
            self.in_pass += 1
            self.done += 1
            self.streamed += len(self.moments)
        self.words[SINCE] = ready
        self.words[INDEX] = NO_INDEX
        self.words[STATE] = IDLE
        if ready > self.due:
            self.due = ready + WRITE_NS
            self.flush()
            if self.while_there and not self.while_there.exists():
                self.over = True  # a worker that persists goes on without us

    def _keep(
        self, ready: int, line_ns: int, cpu_ns: int, collate: tuple[int, int, int] | None
    ) -> None:
        """Keep the row of a batch that is ready, and those of its items, to be written."""
        items = len(self.indices) or len(self.moments)
        bounds = [self.start, *self.moments, self.fetched]
        times = [after - before for before, after in itertools.pairwise(bounds)]
        slow_ns = max(times)
        indices = itertools.count(self.streamed) if self.streams else [None, *self.indices]
        index = next(itertools.islice(indices, times.index(slow_ns), None), None)
        row = BatchRow(
            done=self.done,
            batch=self.batch,
            of_pass=self.passes,
            start=self.start,
            fetched=self.fetched,
            ready=ready,
            cpu_ns=cpu_ns - self.cpu_ns,
            items=items,
            slow_ns=slow_ns,
            line_ns=min(line_ns, ready - self.start),
            slow_index="a batch" if index is None else plain_index(index),
        )
        self.rows.append(row)
        if collate is None:
            return
        sums = [sum(column) for column in zip(*self.laps, strict=True)]
        parts = [_us(ns) for ns in (*sums, *collate, self.cpu_ns - self.process_ns)]
        singly = self.laps[:: -(-len(self.laps) // KEPT_ITEMS)] if len(self.laps) > 1 else []
        cpus = [_us(cpu_ns) for cpu_ns, _, _ in singly]
        waits = [_us(wait_ns) for _, wait_ns, _ in singly]
        self.item_times.append(
            ItemTimes(self.done, self.start, items, *parts, item_cpu=cpus, item_wait=waits)
        )

    def flush(self) -> None:
        """Write the rows that are not written yet."""
        if self.log is not None and self.rows and self.pid == os.getpid():
            self.log.write(
                "items",
                worker=self.worker,
                pid=self.pid,
                rows=self.item_times,
                batches=self.rows,
                memory=self._memory_kib(),
                threads=self.threads and self.threads.computing(),
            )
        self.rows = []
        self.item_times = []

    def _memory_kib(self) -> int | None:
        """Return a watched worker's own memory; None where that is not due, or not known."""
        now = now_ns()
        if self.worker >= 0 and self.while_there is not None and now > self.memory_due:
            self.memory_due = now + MEMORY_NS
            with contextlib.suppress(psutil.Error):
                return psutil.Process().memory_full_info().uss // 1024
        return None

    def close(self) -> None:
        """Write what is left; nothing follows."""
        self.flush()
        self.over = True


def _us(ns: int) -> float:
    return round(ns / 1e3, 1)
