"""A run's times as arrays: its steps on one clock, and what its data cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.event_shapes import MOST
from labkit.results.steps import Steps

if TYPE_CHECKING:
    from labkit.results.run_log import RunLog

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
CLASSES = {  # of a step's time
    "wait": "waiting for data",
    "copy": "host-to-device copy",
    "compute": "device compute",
    "launch": "launch gaps",
    "other": "host work between steps",
}
STRETCH = 250_000  # steps that are looked at together: 100 MB
AHEAD = 1_024  # steps that a host may be ahead of its device: a launch queue holds about 1,000
NUMBERS = 10  # of a row of the bench's item timer, a batch each; then two lists, of the items


class Timeline:
    """The steps of a run in seconds since its first batch was asked for.

    The clock stands still between two passes over a watched loader (validation, checkpoints), of
    which the watch saw nothing.
    """

    def __init__(self, steps: Steps, passes: list[int]):
        """`passes` holds the number of the first step of each pass over a watched loader."""
        self.steps = steps
        self.count = len(steps)  # those that follow are none of this one's
        self.size = (self.count, len(passes))
        self._zero_ns = int(steps.moments("asked", slice(0, 1))[0]) if self.count else 0
        firsts = sorted({number for number in passes if 0 < number < self.count})
        start = np.array([self._ns(number - 1)[0, 5] for number in firsts], dtype=np.int64)
        asked = np.array([self._ns(number)[0, 0] for number in firsts], dtype=np.int64)
        end = np.maximum(start, asked)
        gone = np.cumsum(end - start)
        # Both (2 * pauses,): start and end of each pause, and how long all had lasted by then, ns
        self._edges = np.column_stack([start, end]).ravel()
        self._gone = np.column_stack([gone - (end - start), gone]).ravel()

    def _ns(self, step: int) -> np.ndarray:
        """Return the stamps (1, 6) of a step, ns since the first batch was asked for."""
        return self.steps.stamps(slice(step, step + 1)) - self._zero_ns

    def _seconds(self, moment_ns: Any) -> Any:
        """Return a moment (a number or an array, ns) on the clock that stands still in pauses."""
        moment_ns = moment_ns - self._zero_ns
        if len(self._edges):
            moment_ns = moment_ns - np.interp(moment_ns, self._edges, self._gone)
        return moment_ns / 1e9

    def part(self, start: int, stop: int) -> np.ndarray:
        """Return the stamps (n, 6), s, of the steps from `start` up to `stop`: as `stamps`."""
        return self._seconds(self.steps.stamps(slice(start, min(stop, self.count))))

    @cached_property
    def stamps(self) -> np.ndarray:
        """The stamps of every step (steps, 6), s: see `Steps.stamps`."""
        return self.part(0, self.count)

    @cached_property
    def issued(self) -> np.ndarray:
        """When the host had issued each step (steps,), s."""
        return self._seconds(self.steps.moments("done", slice(self.count)))

    def ends(self, start: int) -> np.ndarray:
        """Return when the steps from `start` on were over (n,), s."""
        return self._seconds(self.steps.moments("busy_end", slice(start, self.count)))

    def stretches(self, start: int, more: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (n, stamps) for n steps at a time, from `start` to the end, so that memory holds.

        The stamps (rows, 6), s, are of the step before them, of these, and of up to `more` behind.
        """
        for first in range(start, self.count, STRETCH):
            count = min(STRETCH, self.count - first)
            yield count, self.part(first - 1, first + count + more)

    def mean_split(self, start: int) -> np.ndarray:
        """Return the mean (5,), s, of what `split_steps` makes of the steps from `start` on."""
        sums = [
            split_steps(stamps)[:count].sum(axis=0)
            for count, stamps in self.stretches(start, AHEAD)
        ]
        return np.sum(sums, axis=0) / (self.count - start)

    def seconds(self, t_ns: Any) -> Any:
        """Return stamps of the run's clock (a number or an array) in s; NaN within a pause."""
        in_pause = np.searchsorted(self._edges, np.subtract(t_ns, self._zero_ns)) % 2
        found = np.where(in_pause, math.nan, self._seconds(np.asarray(t_ns)))
        return found if found.ndim else float(found)

    def utilization(self, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (bins,) s and the busy share (bins,) of equal stretches, stamped at the middle."""
        if not self.count:
            return np.empty(0), np.empty(0)
        edges = np.linspace(0.0, self.ends(self.count - 1)[0], bins + 1)
        busy = np.zeros(bins + 1)  # s, by each edge
        for first in range(0, self.count, STRETCH):
            busy += busy_until(self.part(first, first + STRETCH)[:, 4:6], edges)
        return (edges[:-1] + edges[1:]) / 2, np.diff(busy) / np.diff(edges)


def unevenness(ends_s: np.ndarray, blocks: int) -> float | None:
    """Return IQR over median of the steps per second in `blocks` stretches; None where too few."""
    if len(ends_s) < 3 * blocks:
        return None
    edges = np.linspace(0, len(ends_s) - 1, blocks + 1).astype(int)
    seconds = np.diff(ends_s[edges])
    if (seconds <= 0).any():  # stamps that no clock made
        return None
    low, middle, high = np.percentile(np.diff(edges) / seconds, [25, 50, 75])
    return float((high - low) / middle)


def busy_until(busy: np.ndarray, moments_s: np.ndarray) -> np.ndarray:
    """Return the seconds that the device had been busy by each moment; `busy` is (n, 2), s."""
    done = np.concatenate([[0.0], np.cumsum(busy[:, 1] - busy[:, 0])])
    total = np.column_stack([done[:-1], done[1:]]).ravel()  # flat between intervals, rising inside
    return np.interp(moments_s, busy.ravel(), total, left=0.0)


def split_steps(stamps: np.ndarray) -> np.ndarray:
    """Split each step but the first, from the end before to its own: (steps - 1, 5), s.

    Every moment is in the first of these that was going on: compute, copy, wait, launch (the device
    waits for its next piece of work); else in `other`.
    """
    if len(stamps) < 2:
        return np.zeros((0, 5))
    asked, ready, copy_start, copy_end, busy_start, busy_end = stamps.T
    ends = np.maximum.accumulate(busy_end)
    begin = ends[:-1]  # each step's window
    end = ends[1:]
    start = np.clip(busy_start[1:], begin, end)
    first = np.clip(copy_start[1:], begin, start)
    last = np.clip(copy_end[1:], first, start)
    # What the host did in the two stretches of the gap that no copy fills. On a GPU it may have
    # been at a later step's data by then, so it is asked by time, not by step number. When it had
    # issued a step is known exactly on a CPU, and bounded by what came next elsewhere.
    issued = np.maximum(ready, np.minimum(busy_end, np.append(asked[1:], np.inf)))
    wait = _within_gap(np.column_stack([asked, ready]), begin, first, last, start)
    launch = _within_gap(np.column_stack([ready, issued]), begin, first, last, start)
    other = (first - begin) + (start - last) - wait - launch
    return np.column_stack([wait, last - first, end - start, launch, np.maximum(other, 0.0)])


def _within_gap(
    host: np.ndarray, begin: np.ndarray, first: np.ndarray, last: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Return how long the host was at something (n, 2), s, in each step's gap but for its copy.

    The gap goes from `begin` to `start`, the copy in it from `first` to `last`: (steps,) s each.
    """
    before_copy = busy_until(host, first) - busy_until(host, begin)
    after_copy = busy_until(host, start) - busy_until(host, last)
    return before_copy + after_copy


@dataclass(frozen=True)
class ItemCosts:
    """Per prepared batch, in the order of their start; times in s, one entry a batch."""

    number: np.ndarray  # which batch of its loader process it was, from 0
    start: np.ndarray  # when it began, on the run's clock
    cpu: np.ndarray  # CPU time of fetching its samples
    wait: np.ndarray  # time of fetching in which the process wanted no core: it read or slept
    collate_cpu: np.ndarray  # as `cpu` and `wait`, of the collate step
    collate_wait: np.ndarray
    between: np.ndarray  # CPU time of the process, all threads, since the batch before
    item_cpu: list[np.ndarray]  # as `cpu`, of single samples; empty where not timed singly
    item_wait: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> ItemCosts:
        """Return the batches where the mask `keep` is true."""
        rows = np.flatnonzero(keep)
        kept = []
        for column in vars(self).values():
            is_list = isinstance(column, list)
            kept.append([column[row] for row in rows] if is_list else column[rows])
        return ItemCosts(*kept)


def item_costs(run: RunLog) -> ItemCosts | None:
    """Read what `run` measured of its items; None where it measured nothing (an older record)."""
    rows = [row for event in run.item_events for row in event["rows"] if _is_sound(row)]
    if not rows:
        return None
    rows.sort(key=lambda row: row[1])
    columns = np.array([row[:NUMBERS] for row in rows], dtype=float).T
    number, start, _samples = columns[:3]
    cpu, wait, line, collate_cpu, collate_wait, collate_line, between = columns[3:] / 1e6
    return ItemCosts(
        number=number.astype(int),
        start=run.seconds(start),
        cpu=cpu,
        wait=np.maximum(0.0, wait - LINE_MISSED * line),
        collate_cpu=collate_cpu,
        collate_wait=np.maximum(0.0, collate_wait - LINE_MISSED * collate_line),
        between=between,
        item_cpu=[np.array(row[-2]) / 1e6 for row in rows],
        item_wait=[np.array(row[-1]) / 1e6 for row in rows],
    )


def _is_sound(row: object) -> bool:
    """Return whether a row of the item timer has the numbers that it should have."""
    if not isinstance(row, list) or len(row) != NUMBERS + 2:
        return False
    *numbers, cpus, waits = row
    if not isinstance(cpus, list) or not isinstance(waits, list) or len(cpus) != len(waits):
        return False
    return all(_is_time(value) for value in [*numbers, *cpus, *waits])


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST
