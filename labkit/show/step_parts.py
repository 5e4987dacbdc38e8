"""Where the mean step's time went: parts that add up to the step, on a CPU and on a GPU alike."""

from __future__ import annotations

import numpy as np

from labkit.results.run import Run


def step_parts(run: Run) -> dict[str, float] | None:
    """Return {"wait", "copy", "compute", "other"} of the mean step in ms, warm-up excluded.

    Every moment counts once, for the first that holds: the device computed; it copied; the loop
    waited for data; none of them. So "wait" is only the waiting that left the device idle, unlike
    `run.wait_ms`, the loop's median wait, some of which a GPU may hide under its work. None where
    the run is too short.
    """
    stamps, first = run.stamps, max(run.warmup, 1)
    if run.utilization is None:
        return None
    start, end = stamps[first - 1, 5], stamps[-1, 5]
    covered, parts = 0.0, {}
    intervals = np.empty((0, 2))
    for name, columns in (("compute", (4, 5)), ("copy", (2, 3)), ("wait", (0, 1))):
        intervals = np.concatenate([intervals, stamps[:, columns]])
        together = union_length(intervals, start, end)
        parts[name], covered = together - covered, together
    parts["other"] = end - start - covered
    steps = len(stamps) - first
    return {name: parts[name] * 1e3 / steps for name in ("wait", "copy", "compute", "other")}


def union_length(intervals: np.ndarray, start: float, end: float) -> float:
    """Return how much of `start` to `end` the intervals (n, 2) cover; they may overlap."""
    inside = np.clip(intervals, start, end)
    inside = inside[np.argsort(inside[:, 0], kind="stable")]
    reached = np.maximum.accumulate(np.append(start, inside[:, 1]))  # covered up to here
    return float(np.maximum(0.0, inside[:, 1] - np.maximum(inside[:, 0], reached[:-1])).sum())
