"""A second witness of a busy GPU: did it work, or wait between kernels for the next launch?

A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
no x-ray looked inside, one of these can tell, the surest first: the host that ran ahead (stamps),
the SMs (GPM counters of Hopper and later cards), or the power the card drew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.results.run_data import RunData

# NVML's clocks event reasons: slowdown by the hardware, by heat (software, hardware), power brake.
# The power limit does not count: a card that works hard is held to it
HEAT = 0x8 | 0x20 | 0x40 | 0x80
LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


@dataclass(frozen=True)
class Witness:
    """One instrument's word on the time that the events call busy."""

    said: str  # what it measured, and against which threshold
    works: bool | None  # whether the device worked; None where this cannot be told from it
    share: float = 1.0  # of the busy time in which it worked, 0 to 1, where it says "not"


class Heat(NamedTuple):
    """What heat did to a GPU's clock."""

    share: float  # of the readings in which it held the clock down
    slower: float  # by how much of its highest, 0 to 1; 0: the clock was not read


def heat_of(run: RunData) -> Heat | None:
    """Return for how long heat held a GPU's clock down, and how far; None: never, or not known."""
    _, reasons = run.readings("clock_reasons")
    _, mhz = run.readings("sm_mhz")
    is_hot = np.nan_to_num(reasons).astype(int) & HEAT > 0
    if not is_hot.any():
        return None
    hot_mhz = mhz[is_hot & np.isfinite(mhz)]
    slower = 1 - hot_mhz.mean() / np.nanmax(mhz) if len(hot_mhz) else 0.0
    return Heat(float(is_hot.sum() / np.isfinite(reasons).sum()), float(slower))


def witness_of(run: RunData, heat: Heat | None) -> Witness | None:
    """Return the surest word on a GPU run whose device was timed."""
    busy = run.utilization
    if not busy:
        return None
    ahead, least = run.busy_at_least or 0.0, busy - limits.WORTH_NAMING["launch"]
    said = f"for {ahead:.0%} of the time the device worked on a step that the host had issued in "
    words = [Witness(f"{said}full (stamps; threshold {max(least, 0):.0%})", ahead > least or None)]
    active = run.mean_reading("sm", run.warm_s, limits.MIN_READINGS)
    if active is not None:
        share = active / busy
        said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
        words.append(_word(said, share, share, limits.SMS_WORK, limits.SMS_REST))
    watts = run.mean_reading("power_w", run.warm_s + LAGS_S, limits.MIN_READINGS)
    limit = run.mean_reading("power_limit_w")
    is_hot = heat is not None and heat.share >= limits.HELD_DOWN  # a slow clock draws little
    if watts is not None and limit and not is_hot:
        # A card that waits draws little. While busy it drew at most what it is if it drew nothing
        # else, and at least the mean
        drawn = watts / limit
        said = f"the card drew {drawn:.0%} of its power limit (NVML"
        words.append(_word(said, drawn, drawn / busy, limits.POWER_WORKS, limits.POWER_RESTS))
    return next((each for each in words if each.works is not None), words[-1])


def _word(said: str, least: float, most: float, works: float, rests: float) -> Witness:
    """Judge a reading between `least` and `most`: from `works` on the device works."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", True)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", False, most / works)
    return Witness(f"{said}; between {rests:.0%} and {works:.0%} it tells nothing)", None)
