"""Where the time of our own runs went: every ns of a step in exactly one class, from its stamps.

A step lasts from the end of the step before to its own end, both on the device. Its time belongs to
the first of these that was going on: the device computes, a copy to it runs, the host waits for
data, the host issues work (launch), the host does something else between two steps (other).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLASSES = ("wait", "copy", "compute", "launch", "other")
WORDS = {
    "wait": "waiting for data",
    "copy": "host-to-device copy",
    "compute": "device compute",
    "launch": "launch gaps",
    "other": "host work between steps",
}


@dataclass(frozen=True)
class StepBreakdown:
    """The average step of a run by class, ms. The five add up to `step_ms`.

    On a CPU `compute` is all of forward, backward and update, including Python and dispatch: only
    the x-ray sees inside. On a GPU it is the device's own time from the step's first to its last
    work, gaps between kernels included: launches that come too late show as `launch` only before
    the first of them, and the x-ray sees the rest.
    """

    step_ms: float
    wait_ms: float
    copy_ms: float
    compute_ms: float
    launch_ms: float
    other_ms: float
    steps: int

    @property
    def shares(self) -> dict[str, float]:
        """Share (0 to 1) of wall time in each class."""
        return {name: getattr(self, f"{name}_ms") / self.step_ms for name in CLASSES}

    def to_dict(self) -> dict[str, float | int]:
        """The numbers as JSON types."""
        return {f"{n}_ms": getattr(self, f"{n}_ms") for n in ("step", *CLASSES)} | {
            "steps": self.steps
        }

    def __str__(self) -> str:
        parts = (
            f"{WORDS[name]} {getattr(self, f'{name}_ms'):.1f} ms ({share:.0%})"
            for name, share in self.shares.items()
            if share >= 0.005
        )
        return f"Average of {self.steps} steps, {self.step_ms:.1f} ms: {', '.join(parts)}"


def breakdown(run) -> StepBreakdown | None:
    """Break down the average step of `run`, warm-up excluded; None before two measured steps."""
    matrix = split_steps(run.stamps[max(run.warmup - 1, 0) :])
    if not len(matrix):
        return None
    mean = matrix.mean(axis=0) * 1e3
    values = {f"{name}_ms": float(ms) for name, ms in zip(CLASSES, mean, strict=True)}
    return StepBreakdown(step_ms=float(mean.sum()), steps=len(matrix), **values)


def split_steps(stamps: np.ndarray) -> np.ndarray:
    """Split each step but the first by class: (steps, 6) stamps in s to (steps - 1, 5) s.

    The stamps are asked, ready, copy start, copy end, busy start, busy end; the columns that come
    out are `CLASSES`. Each row adds up to the time from the end before to its own end.
    """
    if len(stamps) < 2:
        return np.zeros((0, len(CLASSES)))
    asked, ready, copy_start, copy_end, busy_start, busy_end = stamps.T
    end = np.maximum.accumulate(busy_end)
    begin = np.minimum(end[:-1], end[1:])  # each step's window: begin to end[1:]
    start = np.clip(busy_start[1:], begin, end[1:])
    compute = end[1:] - start
    first = np.clip(copy_start[1:], begin, start)
    last = np.clip(copy_end[1:], first, start)
    # What the host did in the two stretches of the gap that no copy fills. On a GPU it may have
    # been at a later step's data by then, so it is asked by time, not by step number.
    waiting = _host_time(asked, ready)
    issuing = _host_time(ready, _issued(stamps))

    def in_gap(clock) -> np.ndarray:
        return clock(first) - clock(begin) + clock(start) - clock(last)

    wait, launch = in_gap(waiting), in_gap(issuing)
    other = (first - begin) + (start - last) - wait - launch
    rows = np.column_stack([wait, last - first, compute, launch, np.maximum(other, 0.0)])
    return rows


def _issued(stamps: np.ndarray) -> np.ndarray:
    """When the host had issued each step: known exactly on a CPU, bounded by what came next."""
    asked, ready, busy_end = stamps[:, 0], stamps[:, 1], stamps[:, 5]
    following = np.append(asked[1:], np.inf)
    return np.maximum(ready, np.minimum(busy_end, following))


def _host_time(start: np.ndarray, end: np.ndarray):
    """Return a clock that runs only inside the intervals: time of the run to time inside them."""
    times = np.column_stack([start, end]).ravel()
    spent = np.concatenate([[0.0], np.cumsum(end - start)])
    total = np.column_stack([spent[:-1], spent[1:]]).ravel()
    return lambda moment: np.interp(moment, times, total)
