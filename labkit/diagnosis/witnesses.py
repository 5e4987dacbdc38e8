"""Second witnesses of a busy GPU: did it work, or wait between kernels for the next launch?

A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
no x-ray looked inside, these can tell, the surest first: the host that ran ahead (stamps), the
SMs (GPM counters of Hopper and later cards) and the power the card drew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.results.readings import readings_of
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import busy_until

# NVML's clocks event reasons: slowdown by the hardware, by heat (software, hardware), power brake
HEAT = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAP = 0x4  # the driver's power management, as on a laptop's battery
LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


@dataclass(frozen=True)
class Witness:
    """One instrument's word on the time that the events call busy."""

    said: str  # what it measured, and against which threshold
    works: bool | None  # whether the device worked; None where this cannot be told from it
    share: float = 1.0  # of the busy time in which it worked, 0 to 1, where it says "not"
    at_least: float = 0.0  # of all time in which it worked, whatever the host did, 0 to 1


@dataclass(frozen=True)
class Heat:
    """What heat did to a GPU's clock."""

    share: float  # of the readings in which it held the clock down
    slower: float | None  # by how much of its highest, 0 to 1; None: the clock was not read


def throttled(run: RunData) -> Heat | None:
    """Return for how long heat held a GPU's clock down, and how far.

    The power limit does not count: a card that works hard is held to it. None: never, or not known.
    """
    known, is_hot = _held_down(run, HEAT)
    _, mhz = readings_of(run, "sm_mhz")
    if not is_hot.any():
        return None
    share = float(is_hot.sum() / known.sum())
    if not np.isfinite(mhz[is_hot]).any():
        return Heat(share, None)
    return Heat(share, 1 - float(np.nanmean(mhz[is_hot]) / np.nanmax(mhz[known])))


def _held_down(run: RunData, by: int) -> tuple[np.ndarray, np.ndarray]:
    """Return of each reading whether it has reasons for the clock, and one of those in `by`."""
    _, reasons = readings_of(run, "clock_reasons")
    return np.isfinite(reasons), np.nan_to_num(reasons).astype(int) & by > 0


def witnesses(run: RunData) -> tuple[Witness, ...]:
    """Return what there is on a GPU run whose device was timed."""
    if run.utilization is None:
        return ()
    at_least = run.busy_at_least or 0.0
    worth = limits.WORTH_NAMING["launch"]
    ahead = Witness(
        f"for {at_least:.0%} of the time the device worked on a step that the host had issued in "
        f"full (stamps; threshold {max(run.utilization - worth, 0):.0%})",
        works=run.utilization - at_least < worth or None,
        at_least=at_least,
    )
    return tuple(filter(None, (ahead, _sm_activity(run), _power_drawn(run))))


def deciding(seen: tuple[Witness, ...]) -> Witness | None:
    """Return the first witness that can tell; None where none can."""
    return next((witness for witness in seen if witness.works is not None), None)


def _sm_activity(run: RunData) -> Witness | None:
    """GPM counts SM cycles with at least one warp: few also where kernels fill few SMs."""
    times, shares = readings_of(run, "sm", run.warm_s)
    lengths = np.diff(times)  # each reading is the mean since the one before
    kept = (lengths > 0) & np.isfinite(shares[1:])
    busy_s = np.diff(busy_until(run.busy, times))[kept].sum()
    if kept.sum() < limits.MIN_READINGS or busy_s <= 0:
        return None
    active_s = float((shares[1:] * lengths)[kept].sum())
    share = active_s / float(busy_s)
    said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
    of_all = active_s / float(lengths[kept].sum())
    # A GPU that never rests may read no higher than SMS_WORK, where kernels leave SMs without a
    # warp: from there on no host's work is known to cost anything
    at_least = 1.0 if of_all >= limits.SMS_WORK else of_all
    return _word(said, share, share, at_least, limits.SMS_WORK, limits.SMS_REST)


def _power_drawn(run: RunData) -> Witness | None:
    """A card that waits draws little. So do kernels that use little of it, and a slow clock."""
    _, caps = readings_of(run, "power_limit_w")
    _, watts = readings_of(run, "power_w", run.warm_s + LAGS_S)
    known, is_held = _held_down(run, HEAT | POWER_CAP)
    few = np.isfinite(watts).sum() < limits.MIN_READINGS or not (caps > 0).any()
    if few or not run.utilization:
        return None
    drawn = float(np.nanmean(watts) / np.median(caps[caps > 0]))
    said = f"the card drew {drawn:.0%} of its power limit ({np.nanmean(watts):.0f} W; NVML"
    # While busy it drew at least the mean, and at most what it is if nothing was drawn while idle
    most = drawn / run.utilization
    # At work it draws at most its limit; while it waits between kernels, POWER_RESTS of that
    worked = max(drawn - limits.POWER_RESTS, 0.0) / (1 - limits.POWER_RESTS)
    if most < limits.POWER_RESTS and is_held.sum() >= limits.HELD_DOWN * max(known.sum(), 1):
        return None  # a clock that is held down draws little, whatever the card does
    return _word(said, drawn, most, min(worked, 1.0), limits.POWER_WORKS, limits.POWER_RESTS)


def _word(
    said: str, least: float, most: float, at_least: float, works: float, rests: float
) -> Witness:
    """Judge a reading that lies between `least` and `most`."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", True, at_least=at_least)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", False, max(most, 0.0) / works, at_least)
    tells = f"between {rests:.0%} and {works:.0%} it tells nothing"
    return Witness(f"{said}; {tells})", None, at_least=at_least)
