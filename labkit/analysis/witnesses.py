"""Second witnesses of a busy GPU: did it work, or wait between its kernels for the next launch?

A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
no x-ray looked inside, these can tell: the host that ran ahead (stamps), the SMs (GPM counters of
Hopper and later cards) and the power the card drew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.cost import power
from labkit.results.timeline import busy_until

POWER_LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


@dataclass(frozen=True)
class Witness:
    """One instrument's word on the time that the events call busy.

    Attributes:
        said: What it measured, and against which threshold.
        works: Whether the device worked in that time; None where this cannot be told from it.
        share: Of the busy time, how much the device worked, 0 to 1, where it says "not".
    """

    said: str
    works: bool | None = None
    share: float = 1.0


def witnesses(run: Any) -> tuple[Witness, ...]:
    """Return what there is on a GPU run, the surest first; () on a CPU, where busy is exact."""
    if run.machine.kind != "gpu" or run.utilization is None:
        return ()
    span = float(run.busy[max(run.warmup - 1, 0), 1]), float(run.busy[-1, 1])  # measured, s
    found = _host_ahead(run), _sm_activity(run, *span), _power(run, *span)
    return tuple(witness for witness in found if witness is not None)


def deciding(seen: tuple[Witness, ...]) -> Witness | None:
    """Return the first witness that can tell; None where none can."""
    return next((witness for witness in seen if witness.works is not None), None)


def _host_ahead(run: Any) -> Witness:
    """The device works off a queue that the host has filled. It can only speak for the device."""
    limit = limits.WORTH_NAMING["launch"]
    said = (
        f"for {run.busy_at_least:.0%} of the time the device worked on a step that the host had "
        f"issued in full (stamps; threshold {max(run.utilization - limit, 0):.0%})"
    )
    return Witness(said, True if run.utilization - run.busy_at_least < limit else None)


def _sm_activity(run: Any, start: float, end: float) -> Witness | None:
    """GPM counts SM cycles with at least one warp: few also where kernels fill few SMs."""
    times = np.array([run.seconds(sample["t_ns"]) for sample in run.telemetry], float)
    shares = [(sample.get("gpm") or {}).get("sm") for sample in run.telemetry]
    shares = np.array(shares, float)  # None, not read, becomes NaN
    if len(times) < 2:
        return None
    length = np.diff(times)  # each reading is the mean since the one before
    kept = (times[:-1] >= start) & (times[1:] <= end) & (length > 0) & np.isfinite(shares[1:])
    busy = np.diff(busy_until(run.busy, np.nan_to_num(times)))[kept].sum()
    if kept.sum() < limits.MIN_READINGS or busy <= 0:
        return None
    share = float((shares[1:] * length)[kept].sum() / busy)
    said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
    return _word(said, share, share, limits.SMS_WORK, limits.SMS_REST)


def _power(run: Any, start: float, end: float) -> Witness | None:
    """A card that waits draws little. So do kernels that use little of it."""
    caps = [sample.get("power_limit_w") for sample in run.telemetry]
    caps = [watts for watts in caps if watts is not None and watts > 0]
    watts = power(run)[0]
    if not watts:  # a card without an energy counter: its power readings
        inside = [s for s in run.telemetry if start + POWER_LAGS_S <= run.seconds(s["t_ns"]) <= end]
        read = [s["power_w"] for s in inside if s.get("power_w") is not None]
        watts = float(np.mean(read)) if len(read) >= limits.MIN_READINGS else None
    if not caps or watts is None or run.utilization <= 0:
        return None
    drawn = watts / float(np.median(caps))
    said = f"the card drew {drawn:.0%} of its power limit ({watts:.0f} W; NVML"
    # While busy it drew at least the mean, and at most what it is if nothing was drawn while idle
    most = drawn / run.utilization
    return _word(said, drawn, most, limits.POWER_WORKS, limits.POWER_RESTS)


def _word(said: str, least: float, most: float, works: float, rests: float) -> Witness:
    """Judge a reading that lies between `least` and `most`."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", True)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", False, max(most, 0.0) / works)
    return Witness(f"{said}; between {rests:.0%} and {works:.0%} it tells nothing)")
