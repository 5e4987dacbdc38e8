"""A run's steps on one clock, and the parts of their time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from labkit.stamps.steps import BUSY, STAMPS, Steps

CLASSES = {  # of a step's time
    "wait": "waiting for data",
    "copy": "host-to-device copy",
    "compute": "device compute",
    "launch": "launch gaps",
    "other": "host work between steps",
}


class StepClock:
    """The steps of a run in seconds since its first batch was asked for.

    The clock stands still between two passes over a watched loader (validation, checkpoints), of
    which the watch saw nothing.
    """

    def __init__(self, steps: Steps, passes: Iterable[int]):
        """`passes` holds the number of the first step of each pass over a watched loader."""
        self._steps = steps
        self.count = len(steps)  # those that follow are none of this one's
        self._zero_ns = int(steps.moments("asked", slice(0, 1))[0]) if self.count else 0
        firsts = [number for number in sorted(set(passes)) if 0 < number < self.count]
        behind = np.array(firsts, dtype=int)
        known = slice(behind.max(initial=-1) + 1)
        start = steps.moments("busy_end", known)[behind - 1] - self._zero_ns
        end = np.maximum(start, steps.moments("asked", known)[behind] - self._zero_ns)
        gone = np.cumsum(end - start)
        # Both (2 * pauses,): start and end of each pause, and how long all had lasted by then, ns
        self._edges = np.column_stack([start, end]).ravel()
        self._gone = np.column_stack([gone - (end - start), gone]).ravel()

    def stamps(self, start: int = 0, names: Iterable[str] = STAMPS) -> np.ndarray:
        """Return the moments so named of the steps from `start` on (n, names), s."""
        return self._seconds(self._steps.table(names, slice(start, self.count)))

    def moments(self, name: str, start: int = 0) -> np.ndarray:
        """Return a moment of the steps from `start` on (n,), s: see `Steps.moments`."""
        return self._seconds(self._steps.moments(name, slice(start, self.count)))

    def busy_s(self, start: int) -> float:
        """Return for how long the device was busy with the steps from `start` on, s.

        It is the sum of what lies between the `BUSY` moments of each: "busy" of a step's event in
        the log, which a GPU's own events timed. A CPU's step has none: it counts from the host's
        moment `copied` to `done`, between which the host computes (`Steps.moments`).
        """
        return float(np.diff(self.stamps(start, BUSY)).sum())

    def _seconds(self, at_ns: np.ndarray) -> np.ndarray:
        """Return moments on the clock that stands still in pauses."""
        since_ns = at_ns - self._zero_ns
        if len(self._edges):
            since_ns = since_ns - np.interp(since_ns, self._edges, self._gone)
        return since_ns / 1e9

    def seconds(self, at_ns: ArrayLike) -> np.ndarray:
        """Return moments of the machine's clock in s; NaN within a pause."""
        at_ns = np.asarray(at_ns)
        in_pause = np.searchsorted(self._edges, at_ns - self._zero_ns) % 2
        return np.where(in_pause, math.nan, self._seconds(at_ns))

    def utilization(self, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (bins,) s and the busy share (bins,) of equal stretches, stamped at the middle."""
        if not self.count:
            return np.empty(0), np.empty(0)
        busy = self.stamps(0, BUSY)
        edges = np.linspace(0.0, busy[-1, -1], bins + 1)
        return (edges[:-1] + edges[1:]) / 2, np.diff(busy_until(busy, edges)) / np.diff(edges)


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
    # Of each step, the gap from the end before to its own compute, with the copy in it
    gap_start = ends[:-1]
    gap_end = np.clip(busy_start[1:], gap_start, ends[1:])
    copy_start = np.clip(copy_start[1:], gap_start, gap_end)
    copy_end = np.clip(copy_end[1:], copy_start, gap_end)

    def in_gap(host_start: np.ndarray, host_end: np.ndarray) -> np.ndarray:
        """Return how long the host was at something in the gap while nothing was copied.

        On a GPU it may be at a later step's by then, so it is asked by time, not by step number.
        """
        host = np.column_stack([host_start, host_end])
        before_copy = busy_until(host, copy_start) - busy_until(host, gap_start)
        after_copy = busy_until(host, gap_end) - busy_until(host, copy_end)
        return before_copy + after_copy

    # When the host had issued a step is known exactly on a CPU, and bounded by what came next
    # elsewhere
    issued = np.maximum(ready, np.minimum(busy_end, np.append(asked[1:], np.inf)))
    wait = in_gap(asked, ready)
    launch = in_gap(ready, issued)
    copy = copy_end - copy_start
    other = np.maximum(gap_end - gap_start - copy - wait - launch, 0.0)
    return np.column_stack([wait, copy, ends[1:] - gap_end, launch, other])


def body_seconds(stamps: np.ndarray) -> np.ndarray:
    """Return how long the body of each step took, (steps,) s: not while it queued behind another.

    A GPU's queue holds steps whose data the host had long before: their time in it is no work.
    """
    _, ready, *_, busy_end = stamps.T
    ends = np.maximum.accumulate(busy_end)
    free = np.concatenate([[-np.inf], ends[:-1]])
    return ends - np.maximum(ready, free)
