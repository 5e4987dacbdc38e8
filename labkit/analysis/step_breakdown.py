"""Where the time of our own runs went: every ns of a step in exactly one class, from its stamps.

A step lasts from the end of the step before to its own end, both on the device. Its time belongs to
the first of these that was going on: the device computes, a copy to it runs, the host waits for
data, the host issues work (launch), the host does something else between two steps (other).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.timeline import busy_until

CLASSES = {
    "wait": "waiting for data",
    "copy": "host-to-device copy",
    "compute": "device compute",
    "launch": "launch gaps",
    "other": "host work between steps",
}


@dataclass(frozen=True, repr=False)
class StepBreakdown(Result):
    """The average step of a run by class, ms. The five add up to `step_ms`.

    On a CPU `compute` is all of forward, backward and update, including Python and dispatch. On a
    GPU it lasts from the step's first kernel to its last, gaps included: launches that come too
    late show as `launch` only before the first. In both cases only the x-ray sees inside.
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

    def table(self) -> Table:
        """Return a row for each class, and the step they add up to."""
        shares = self.shares.items()
        rows = [
            (CLASSES[name], f"{part * self.step_ms:.1f}", f"{part:.0%}") for name, part in shares
        ]
        total = (f"average of {self.steps} steps", f"{self.step_ms:.1f}", "100%")
        return Table([*rows, total], ("class", "ms per step", "share"))


def breakdown(run: Any) -> StepBreakdown | None:
    """Break down the average step of `run`, warm-up excluded; None before two measured steps."""
    matrix = split_steps(run.stamps[max(run.warmup - 1, 0) :])
    if not matrix.any():
        return None
    mean = matrix.mean(axis=0) * 1e3
    return StepBreakdown(float(mean.sum()), *mean.tolist(), len(matrix))


def split_steps(stamps: np.ndarray) -> np.ndarray:
    """Split each step but the first by class: (steps, 6) `Run.stamps` to (steps - 1, 5) s.

    The columns are `CLASSES`; a row adds up to the time from the end before to the step's own end.
    """
    if len(stamps) < 2:
        return np.zeros((0, len(CLASSES)))
    asked, ready, copy_start, copy_end, busy_start, busy_end = stamps.T
    end = np.maximum.accumulate(busy_end)
    begin, end = np.minimum(end[:-1], end[1:]), end[1:]  # each step's window
    start = np.clip(busy_start[1:], begin, end)
    first = np.clip(copy_start[1:], begin, start)
    last = np.clip(copy_end[1:], first, start)
    # What the host did in the two stretches of the gap that no copy fills. On a GPU it may have
    # been at a later step's data by then, so it is asked by time, not by step number. When it had
    # issued a step is known exactly on a CPU, and bounded by what came next elsewhere.
    issued = np.maximum(ready, np.minimum(busy_end, np.append(asked[1:], np.inf)))
    wait, launch = (
        busy_until(host, first) - busy_until(host, begin)
        + busy_until(host, start) - busy_until(host, last)
        for host in (np.column_stack([asked, ready]), np.column_stack([ready, issued]))
    )  # fmt: skip
    other = (first - begin) + (start - last) - wait - launch
    return np.column_stack([wait, last - first, end - start, launch, np.maximum(other, 0.0)])
