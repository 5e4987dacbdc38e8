"""A second witness of a busy GPU: did it work, or wait between kernels for the next launch?

A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
no x-ray looked inside, one of these can tell, the surest first: the host that ran ahead (stamps),
the SMs (GPM counters of Hopper and later cards), or the power the card drew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.results.readings import mean_of, readings_of
from labkit.results.run_data import RunData

# NVML's clocks event reasons: slowdown by the hardware, by heat (software, hardware), power brake.
# The power limit does not count: a card that works hard is held to it
HEAT = 0x8 | 0x20 | 0x40 | 0x80
LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


class Witness(NamedTuple):
    """One instrument's word on the time that the events call busy."""

    said: str  # what it measured, and against which threshold
    idle: float | None  # share of that time in which the device waited; None: it cannot tell


def heat_of(run: RunData) -> float | None:
    """Return the share of the readings in which heat held a GPU's clock down; None: not read."""
    _, reasons = readings_of(run, "clock_reasons")
    known = reasons[np.isfinite(reasons)].astype(int)
    return float(np.mean(known & HEAT > 0)) if len(known) else None


def witness_of(run: RunData, heat: float) -> Witness | None:
    """Return the surest word on a GPU run whose device was timed; None where it was not.

    A clock that heat holds down for a share of the time, `heat`, draws little.
    """
    busy = run.utilization
    if not busy:
        return None
    ahead, least = run.busy_at_least or 0.0, busy - limits.WORTH_NAMING["launch"]
    said = f"for {ahead:.0%} of the time the device worked on a step that the host had issued in "
    said += f"full (stamps; threshold {max(least, 0):.0%})"
    words = [Witness(said, 0.0 if ahead > least else None)]
    active = mean_of(run, "sm", run.warm_s, limits.MIN_READINGS)
    if active is not None:
        share = active / busy
        said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
        words.append(_word(said, share, share, limits.SMS_WORK, limits.SMS_REST))
    watts = mean_of(run, "power_w", run.warm_s + LAGS_S, limits.MIN_READINGS)
    limit = mean_of(run, "power_limit_w")
    if watts is not None and limit and heat < limits.HELD_DOWN:
        # A card that waits draws little. While busy it drew at most what it is if it drew nothing
        # else, and at least the mean
        drawn = watts / limit
        said = f"the card drew {drawn:.0%} of its power limit (NVML"
        words.append(_word(said, drawn, drawn / busy, limits.POWER_WORKS, limits.POWER_RESTS))
    return next((each for each in words if each.idle is not None), words[-1])


def _word(said: str, least: float, most: float, works: float, rests: float) -> Witness:
    """Judge a reading between `least` and `most`: from `works` on the device works."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", 0.0)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", 1 - most / works)
    return Witness(f"{said}; between {rests:.0%} and {works:.0%} it tells nothing)", None)
