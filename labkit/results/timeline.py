"""A run's steps on one clock, and how busy the device was by when."""

from __future__ import annotations

from typing import Any

import numpy as np


class Timeline:
    """The steps of a run in seconds since its first batch was asked for.

    The clock stands still between two passes over a watched loader (validation, checkpoints): the
    watch did not see what happened there, so no statistic may count it as idle.

    Attributes:
        size: The number of steps and of passes it is made of.
        stamps: (steps, 6): asked, ready, copy start, copy end, busy start, busy end; s.
    """

    def __init__(self, steps: list[dict[str, Any]], passes: list[int]):
        """`passes` holds the number of the first step of each pass over a watched loader."""
        self.size = len(steps), len(passes)
        self._done_ns = np.array([step["t"][3] for step in steps], dtype=np.int64)
        self._zero_ns = steps[0]["t"][0] if steps else 0
        stamps = stamps_ns(steps)
        first = np.array(sorted({i for i in passes if 0 < i < len(steps)}), dtype=np.int64)
        start = stamps[first - 1, 5]
        end = np.maximum(start, stamps[first, 0])
        gone = np.cumsum(end - start)
        # Both (2 * pauses,): start and end of each pause, and how long all had lasted by then, ns
        self._edges = np.column_stack([start, end]).ravel()
        self._gone = np.column_stack([gone - (end - start), gone]).ravel()
        self.stamps = self._running(stamps) / 1e9

    def _running(self, moment_ns: Any) -> Any:
        """Return a moment (a number or an array, ns) on the clock that stands still in pauses."""
        if not len(self._edges):
            return moment_ns
        return moment_ns - np.interp(moment_ns, self._edges, self._gone)

    @property
    def issued(self) -> np.ndarray:
        """When the host had issued each step (steps,), s."""
        return self._running(self._done_ns - self._zero_ns) / 1e9

    def seconds(self, t_ns: int) -> float:
        """Return a stamp of the run's clock in s; NaN within a pause, which is no time of it."""
        moment = t_ns - self._zero_ns
        if np.searchsorted(self._edges, moment) % 2:
            return float("nan")
        return float(self._running(moment)) / 1e9

    def utilization(self, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (bins,) s and the busy share (bins,) of equal stretches, stamped at the middle."""
        busy = self.stamps[:, 4:6]
        if len(busy) == 0:
            return np.empty(0), np.empty(0)
        edges = np.linspace(0.0, busy[-1, 1], bins + 1)
        return (edges[:-1] + edges[1:]) / 2, np.diff(busy_until(busy, edges)) / np.diff(edges)


def stamps_ns(steps: list[dict[str, Any]]) -> np.ndarray:
    """Return (steps, 6) in ns since the first batch was asked for: columns as `Timeline.stamps`.

    Where the events have no device times (a CPU), copy and compute are what the host did.
    """
    rows = []
    for step in steps:
        asked, ready, copied, done = step["t"]
        copy, busy = step.get("copy", (ready, copied)), step.get("busy", (copied, done))
        rows.append((asked, ready, *copy, *busy))
    stamps = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return stamps - stamps[:1, :1]


def unevenness(ends_s: np.ndarray, blocks: int) -> float | None:
    """Return IQR over median of the steps per second in `blocks` stretches; None where too few.

    `ends_s` (steps,) are the steps' ends, s.
    """
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
    # Flat between intervals, rising at 1 inside them
    total = np.column_stack([done[:-1], done[1:]]).ravel()
    return np.interp(moments_s, busy.ravel(), total, left=0.0)
