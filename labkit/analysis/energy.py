"""Energy of the device while it trained, from its own counter as the record has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.results.timeline import busy_until

PAUSE_S = 1e-3  # the run's clock stood still between two readings: a pause, of no interest here


def power(run: Any) -> tuple[float | None, float | None]:
    """Return mean power (W) behind the warm-up, and the share of its energy spent while idle.

    None and None where the counter was read less than twice.
    """
    counts = [(s["t_ns"] / 1e9, run.seconds(s["t_ns"]), s.get("energy_j")) for s in run.telemetry]
    start, end = run.busy[max(run.warmup - 1, 0), 1], run.busy[-1, 1]
    counts = [row for row in counts if row[2] is not None and start <= row[1] <= end]
    if len(counts) < 2:
        return None, None
    clock, moment, joules = np.array(counts, float).T
    seconds, spent = np.diff(moment), np.diff(joules)
    sound = (seconds > 0) & (spent >= 0) & (np.diff(clock) - seconds < PAUSE_S)
    if not sound.any() or not spent[sound].sum():
        return None, None
    seconds_busy = np.diff(busy_until(run.busy, moment))
    idle = (1 - seconds_busy[sound] / seconds[sound]).clip(0, 1)
    total = float(spent[sound].sum())
    return total / float(seconds[sound].sum()), float((spent[sound] * idle).sum()) / total


def joules_per_sample(run: Any) -> float | None:
    """Return the device's energy for one sample, J; None where it was not measured."""
    watts = power(run)[0] if run.throughput else None
    return None if watts is None else watts / run.throughput
