"""The power that a card drew while a run trained."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis.thresholds import MIN_READINGS
from labkit.results.readings import readings, readings_of
from labkit.results.run_data import RunData

LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)
PAUSE_S = 1e-3  # the run's clock stood still between two readings: a pause, of no interest here


def by_counter(run: RunData) -> float | None:
    """Return mean power (W) after the warm-up, by the card's energy counter; None: hardly read."""
    counts = [
        (sample["t_ns"] / 1e9, moment, sample["energy_j"])
        for moment, sample in readings(run, run.warm_s)
        if sample.get("energy_j") is not None
    ]
    if len(counts) < 2:
        return None
    clock_s, seconds, spent_j = np.diff(np.array(counts, float), axis=0).T
    sound = (seconds > 0) & (spent_j >= 0) & (clock_s - seconds < PAUSE_S)
    return float(spent_j[sound].sum() / max(seconds[sound].sum(), 1e-9)) or None


def by_meter(run: RunData) -> float | None:
    """Return mean power (W) after the warm-up, as the card told it; None: hardly read."""
    _, watts = readings_of(run, "power_w", run.warm_s + LAGS_S)
    known = watts[np.isfinite(watts)]
    return float(known.mean()) if len(known) >= MIN_READINGS else None
