"""What a DataLoader's process does for each batch: how long it takes, on what, and since when.

`labkit.instruments.loader_hook` calls it. Rows of batches are written ten times a second.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from labkit.instruments.hangs import (
    BATCH,
    COLLATING,
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
from labkit.instruments.loader_clocks import LibraryThreads, ThreadClock, TimeInLine, own_kib
from labkit.process.thinning import Thinning
from labkit.stamps.events import EventLog, now_ns

WRITE_NS = 100_000_000  # between two writes of a process, at first
MOST_WRITES = 1_000  # of all workers together at that rate; then ever fewer
MOST_GATHERED = 500  # batches that wait to be added up
MOST_ROWS = 2_000  # of all workers together, 0.7 MB; then every second batch, every fourth, ...
# Of a loader whose workers start anew for each pass, so many starts are recorded, with as many rows
# each; then every second start, every fourth, ..., with fewer and fewer rows
STARTS = 16
KEPT_ITEMS = 16  # of a batch whose times are written one by one; of the others, the sum
SLOWEST = 5  # items of a process that are named
WORTH_A_LOOK_NS = 300_000  # of a batch: two readings of the time in line take 2.6 µs, 0.9 % of it
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
    line_ns: int  # in line for a core
    slow_index: object


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
    """Times the batches of one process of a loader, and writes them into the run's log.

    What is not needed at once waits until `flush`, as a batch leaves the caches cold: a step of
    Python then takes several times as long.
    """

    def __init__(
        self,
        log: EventLog | None,
        worker: int,
        workers: int,
        while_there: Path | None = None,
        start: int = 1,
    ):
        """Begin in this process; `worker` is -1 in the main one. Without a `log` nothing is kept.

        It is the process of the loader's `start`th pass, where its workers start anew for each.

        `while_there` is a file that is there while a watched loop goes on: the progress is kept
        beside it. Without one the run is the bench's: items are timed one by one.
        """
        self.log = log
        self.worker = worker
        self.workers = max(1, workers)
        self.pid = os.getpid()
        self.while_there = while_there
        self.over = False
        where = while_there.parent if while_there else None
        self.words = progress_words(where, "main" if worker < 0 else worker)
        self.clock = None if while_there else ThreadClock()
        self.in_line = TimeInLine()
        self.worth_a_look = False  # whether batches take so long that two readings are nothing
        self.threads = LibraryThreads() if worker >= 0 else None
        self.looks_at_memory = while_there is not None and worker >= 0
        self.memory_due = 0
        self.passes = -1
        self.done = 0
        self.rows = Thinning(max(1, MOST_ROWS // self.workers // max(1, start // STARTS)))
        self.writes = MOST_WRITES / self.workers / start
        self.due = 0  # to write
        self.began_ns = now_ns()
        self.gathered: list[BatchRow] = []  # of each batch since they were added up last
        self.kept: list[BatchRow] = []  # of these, to be written
        self.laps: list[ItemTimes] = []  # and of those whose items are timed one by one
        self.totals: Counter[str] = Counter()
        self.written = 0  # batches in the log
        self.slowest: list[tuple[int, int | str, int]] = []
        self.process_ns = time.process_time_ns()

    def begin_pass(self, streams: bool) -> None:
        """Begin a pass over the dataset, which `streams` its samples where it is iterable."""
        self.passes += 1
        self.in_pass = 0  # batches
        self.streams = streams
        self.streamed = 0  # items of the pass

    @property
    def is_on(self) -> bool:
        """Whether this goes on, here and in no process that was forked from this one."""
        return not self.over and self.pid == os.getpid()

    def begin(self, number: object, indices: object) -> None:
        """Begin batch `number` of the pass, of the items at `indices` where the dataset has any."""
        if type(number) is not int:
            number = self.in_pass * self.workers + max(0, self.worker)
        self.batch = number
        known = type(indices) in (list, tuple) and not self.streams
        self.indices: Sequence[object] = cast(list, indices) if known else ()
        self.count = len(self.indices)
        self.asked = 0  # items, one by one
        self.is_collating = False
        self.slow_ns = -1
        self.slow_index: object = None
        self.singly = None  # the stopwatch, in batches whose items are timed one by one
        if not self.streams and self.done % self.rows.every == 0:
            self.singly = self.clock
        if self.singly is not None:
            self.items: list[tuple[int, int, int]] = []
            self.singly.lap()
        self.cpu_ns = time.process_time_ns()
        self.line_ns = self.in_line.now() if self.worth_a_look else 0
        words = self.words
        words[BATCH] = number
        words[STATE] = FETCHING
        self.start = self.fetched = now_ns()
        words[SINCE] = self.start

    def next_item(self) -> None:
        """An item is asked for, so the one before it is there."""
        if self.over:
            return
        if self.asked:
            self._end_item(self._index())
        self.asked += 1
        self.words[INDEX] = index_word(self._index())

    def _index(self) -> object:
        """Return the index of the item that was asked for last; None where it is not known."""
        return self.indices[self.asked - 1] if self.asked <= len(self.indices) else None

    def end_streamed(self, item: object) -> object:
        """Note that an item of a stream is there, and return it."""
        if not self.over:
            self._end_item(self.streamed)
            self.count += 1
            self.streamed += 1
        return item

    def _end_item(self, index: object) -> None:
        words = self.words
        now = now_ns()
        took = now - words[SINCE]
        words[SINCE] = now
        if took > self.slow_ns:
            self.slow_ns = took
            self.slow_index = index
        if self.singly is not None:
            self.items.append(self.singly.lap())
            words[SINCE] = now_ns()

    def begin_collate(self) -> None:
        """All items are here."""
        if not self.streams:
            self._end_item(self._index() if self.asked else self.indices)
            self.count = self.count or self.asked
        self.fetched = now_ns()
        self.words[SINCE] = self.fetched
        self.words[STATE] = COLLATING
        self.is_collating = True

    def end_fetch(self) -> None:
        """The batch is ready, or an item could not be had."""
        if not self.is_collating:
            self.idle(now_ns())
            return
        collate = None if self.singly is None else self.singly.lap()
        ready = now_ns()
        in_line_ns = self.in_line.now() - self.line_ns if self.worth_a_look else 0
        self.worth_a_look = ready - self.start > WORTH_A_LOOK_NS
        cpu_ns = time.process_time_ns()
        self.idle(ready)
        between_ns = self.cpu_ns - self.process_ns
        self.process_ns = cpu_ns
        row = BatchRow(
            done=self.done,
            batch=self.batch,
            of_pass=self.passes,
            start=self.start,
            fetched=self.fetched,
            ready=ready,
            cpu_ns=cpu_ns - self.cpu_ns,
            items=self.count,
            slow_ns=self.slow_ns,
            line_ns=in_line_ns,
            slow_index=self.slow_index,
        )
        self.gathered.append(row)
        if collate is not None:
            self.laps.append(self._laps_row(collate, between_ns))
        self.in_pass += 1
        self.done += 1
        if ready > self.due or len(self.gathered) == MOST_GATHERED:
            self._gather(ready)

    def _laps_row(self, collate: tuple[int, int, int], between_ns: int) -> ItemTimes:
        """Return the row of a batch that predictions are made from."""
        items = self.items
        sums = [sum(column) for column in zip(*items, strict=True)] or [0, 0, 0]
        kept = items[:: -(-len(items) // KEPT_ITEMS)] if len(items) > 1 else []
        times = map(_microseconds, (*sums, *collate, between_ns))
        cpus = [_microseconds(cpu_ns) for cpu_ns, _, _ in kept]
        waits = [_microseconds(wait_ns) for _, wait_ns, _ in kept]
        return ItemTimes(self.done, self.start, self.count, *times, item_cpu=cpus, item_wait=waits)

    def idle(self, now: int) -> None:
        """This process is busy with nothing that is the user's."""
        self.words[SINCE] = now
        self.words[INDEX] = NO_INDEX
        self.words[STATE] = IDLE

    def _gather(self, now: int) -> None:
        """Add up what has gathered, and write it where that is due: the older, the more seldom."""
        self._add_up()
        if now > self.due:
            self.due = now + max(WRITE_NS, int((now - self.began_ns) / self.writes))
            self.flush()
        if self.while_there and not self.while_there.exists():
            self.over = True  # a worker that persists goes on without us

    def flush(self) -> None:
        """Write what has gathered, where there is a batch that is not written yet."""
        if self.pid != os.getpid():
            return
        self._add_up()
        if self.log is not None and self.totals["batches"] > self.written:
            self.written = self.totals["batches"]
            self.log.write(
                "items",
                worker=self.worker,
                pid=self.pid,
                rows=self.laps,
                batches=self.kept,
                totals=self.totals,
                slowest=self.slowest,
                memory=self._memory_kib(),
                threads=self.threads and self.threads.computing(),
            )
            self.laps = []
            self.kept = []

    def _memory_kib(self) -> int | None:
        """Return this worker's own memory; None where that is not due."""
        now = now_ns()
        if not self.looks_at_memory or now < self.memory_due:
            return None
        self.memory_due = now + MEMORY_NS
        return own_kib()

    def _add_up(self) -> None:
        """Add what has gathered to the totals, and keep the rows of some batches."""
        gathered = self.gathered
        self.gathered = []
        totals = self.totals
        totals["batches"] += len(gathered)
        for row in gathered:
            totals["items"] += row.items
            totals["busy_ns"] += row.ready - row.start
            totals["cpu_ns"] += row.cpu_ns
            totals["line_ns"] += row.line_ns
            index = plain_index(row.slow_index)
            if row.done:  # the first batch of a process opens files and imports modules
                self.slowest.append((max(0, row.slow_ns - row.line_ns), index, row.batch))
            if self.rows.keeps():
                self.kept.append(row._replace(slow_index=index))
        self.slowest.sort(key=lambda each: each[0], reverse=True)
        del self.slowest[SLOWEST:]

    def close(self) -> None:
        """Write what is left, and let go of the files."""
        self.flush()
        self.over = True
        for each in (self.clock, self.in_line):
            if each is not None:
                each.close()


def _microseconds(ns: int) -> float:
    return round(ns / 1e3, 1)
