"""The power that a card drew while a run trained."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis.thresholds import MIN_READINGS
from labkit.results.readings import after_warmup, readings, readings_of
from labkit.results.run import Run
from labkit.results.step_classes import busy_until

LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)
PAUSE_S = 1e-3  # the run's clock stood still between two readings: a pause, of no interest here


def by_counter(run: Run) -> tuple[float | None, float | None]:
    """Return mean power (W) after the warm-up and its energy's idle share; None: hardly read."""
    counts = [
        (sample["t_ns"] / 1e9, moment, sample["energy_j"])
        for moment, sample in readings(run, after_warmup(run))
        if sample.get("energy_j") is not None
    ]
    if len(counts) < 2:
        return None, None
    clock, moment, joules = np.array(counts, float).T
    seconds = np.diff(moment)
    spent = np.diff(joules)
    sound = (seconds > 0) & (spent >= 0) & (np.diff(clock) - seconds < PAUSE_S)
    total = float(spent[sound].sum())
    if not total:
        return None, None
    worked = np.diff(busy_until(run.busy, moment))[sound]
    idle = (1 - worked / seconds[sound]).clip(0, 1)
    return total / float(seconds[sound].sum()), float((spent[sound] * idle).sum()) / total


def by_meter(run: Run) -> float | None:
    """Return mean power (W) after the warm-up, as the card told it; None: hardly read."""
    _, watts = readings_of(run, "power_w", after_warmup(run) + LAGS_S)
    known = watts[np.isfinite(watts)]
    return float(known.mean()) if len(known) >= MIN_READINGS else None
