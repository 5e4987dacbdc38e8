"""What instruments show of a run, how wrong each is, and which can tell whether a busy GPU worked.

Each is held against the device's known busy intervals: those that were read during the run, and the
usual dashboards, computed from the intervals and labelled so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cost import power
from labkit.results.result import Result, Table
from labkit.results.step_classes import busy_until

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPUTED = "computed from the true intervals"
READ = "read during the run"
# (name, averaging window in s, polling period in s). NVML documents its utilization window as 1/6
# to 1 s by product; `nvidia-smi -l 1` and `watch` (2 s) poll it; W&B samples every 15 s by default
WINDOWS = (
    ("driver window of 1/6 s", 1 / 6, 1 / 6),
    ("driver window of 1 s (nvidia-smi -l 1)", 1.0, 1.0),
    ("1 s window every 2 s (watch nvidia-smi)", 1.0, 2.0),
    ("1 s window every 15 s (W&B's default)", 1.0, 15.0),
)
COUNTERS = (("sm", "GPM: SM activity"), ("tensor", "GPM: tensor activity"), ("dram", "GPM: DRAM"))
TEETH = 0.5  # readings that swing over half of the scale show that the device stops and starts
POWER_LAGS_S = 1.0  # NVML's power is the mean of the last second (nvmlDeviceGetPowerUsage, Ampere)


@dataclass(frozen=True)
class Reading:
    """The readings of one instrument; the errors are None where there are too few to tell."""

    name: str
    source: str
    times_s: np.ndarray
    shares: np.ndarray  # 0 to 1, each held to the next
    mean_error_pp: float | None = None  # the line's mean less the true utilization
    distance_pp: float | None = None  # mean distance from what the device did: 0 or 100%

    @property
    def shows_teeth(self) -> bool | None:
        """Whether a person would see the device stop and start; None with under two readings."""
        if len(self.shares) < 2:
            return None
        low, high = np.percentile(self.shares, [5, 95])
        return bool(high - low >= TEETH)


@dataclass(frozen=True, repr=False)
class Instruments(Result):
    """Every instrument's view of one run, a Reading each."""

    run: Any
    readings: list[Reading]

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def plot(self) -> Figure:
        """Draw a row for each instrument."""
        from labkit.view.analysis_figures import draw_instruments

        return draw_instruments(self)

    def table(self) -> Table:
        """Return each instrument's source, readings, errors, and whether it shows the teeth."""
        rows = []
        for reading in self.readings:
            mean, off = reading.mean_error_pp, reading.distance_pp
            rows.append((
                reading.name, reading.source, len(reading.shares) or "none in this run",
                None if mean is None else f"{mean:+.1f} pp",
                None if off is None else f"{off:.1f} pp",
                {True: "yes", False: "no", None: None}[reading.shows_teeth],
            ))  # fmt: skip
        head = ("instrument", "", "readings", "mean error", "off by", "shows the teeth")
        return Table(rows, head=head, left=(0, 1, 5))


def instruments(run: Any) -> Instruments:
    """Return what every instrument showed of `run`, or would have; ValueError without two steps."""
    busy = run.busy
    if len(busy) < 2:
        raise ValueError(f"The run has {len(busy)} steps: an instrument needs two at least.")
    teeth = np.tile([1.0, 0.0], len(busy))
    seen = [("step timing: the true intervals", READ, busy.ravel(), teeth)]
    read = [("psutil: all CPU cores, loader included", samples(run, "cpu"))]
    if run.machine.kind == "gpu":
        read = [
            ("nvidia-smi, as NVML tells it", samples(run, "gpu_now")),
            ("NVML: the driver's own samples", driver_samples(run)),
        ]
        read += [(name, samples(run, key)) for key, name in COUNTERS]
    for name, (times, shares) in read:
        known = np.isfinite(shares)
        seen.append((name, READ, times[known], shares[known]))
    if run.xray is not None:  # one number: it looked at a few steps only
        share = np.array([run.xray.utilization])
        seen.append(("PyTorch Profiler: a few steps", READ, busy[-1:, 1], share))
    for name, window_s, period_s in WINDOWS:
        times = np.arange(window_s, busy[-1, 1] + 1e-9, period_s)
        shares = (busy_until(busy, times) - busy_until(busy, times - window_s)) / window_s
        seen.append((name, COMPUTED, times, shares))
    return Instruments(run, [_judged(busy, *each) for each in seen])


def samples(run: Any, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a metric read once per telemetry event, GPM's too: (seconds, values, NaN for gaps)."""
    flat = (event | (event.get("gpm") or {}) for event in run.telemetry)
    return _during(run, [(event["t_ns"], event.get(key)) for event in flat])


def driver_samples(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that the driver had buffered, each with a stamp of its own."""
    pairs: list[Any] = []
    for event in run.telemetry:
        buffered = event.get("gpu")
        pairs += [(event["t_ns"], None)] if buffered is None else buffered
    return _during(run, pairs)


def _during(run: Any, pairs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Turn (t_ns, share or None) into arrays, of the time in which the run trained."""
    seconds = run.seconds(np.array([t_ns for t_ns, _ in pairs]))
    shares = np.array([share for _, share in pairs], dtype=float)  # None becomes NaN
    inside = (seconds >= 0) & (seconds <= run.length_s)
    return seconds[inside], shares[inside]


def _judged(
    busy: np.ndarray, name: str, source: str, times: np.ndarray, shares: np.ndarray
) -> Reading:
    """Return a Reading with its errors, its line held from each value to the next."""
    end = busy[-1, 1]
    edges = np.append(times[times < end], end)
    held, lengths = shares[: len(edges) - 1], np.diff(edges)
    if lengths.sum() <= 0:
        return Reading(name, source, times, shares)
    worked = np.diff(busy_until(busy, edges))
    # Over a stretch of length L with b busy seconds a line at r is off by r (L - b) + (1 - r) b
    distance = abs(held * (lengths - worked) + (1 - held) * worked).sum() / lengths.sum()
    error = ((held * lengths).sum() - worked.sum()) / lengths.sum()
    return Reading(name, source, times, shares, 100 * error, 100 * distance)


# -- second witnesses of a busy GPU: did it work, or wait between kernels for the next launch? ----
#
# A pair of events counts a GPU as busy from a step's first kernel to its last, gaps included. Where
# no x-ray looked inside, these can tell, the surest first: the host that ran ahead (stamps), the
# SMs (GPM counters of Hopper and later cards) and the power the card drew.

# NVML's clocks event reasons: slowdown by the hardware, by heat (software, hardware), power brake
HEAT = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Witness:
    """One instrument's word on the time that the events call busy."""

    said: str  # what it measured, and against which threshold
    works: bool | None = None  # whether the device worked; None where this cannot be told from it
    share: float = 1.0  # of the busy time in which it worked, 0 to 1, where it says "not"


def throttled(run: Any) -> tuple[float, float | None] | None:
    """Return the share of samples in which heat held a GPU's clock down, and how far (0 to 1).

    The power limit does not count: a card that works hard is held to it. None: never, or not told.
    """
    if not run.steps:
        return None
    reasons, mhz = samples(run, "clock_reasons")[1], samples(run, "sm_mhz")[1]
    told, held = np.isfinite(reasons), np.nan_to_num(reasons).astype(int) & HEAT > 0
    if not held.any():
        return None
    known = np.isfinite(mhz[held]).any()
    slower = 1 - float(np.nanmean(mhz[held]) / np.nanmax(mhz[told])) if known else None
    return float(held.sum() / told.sum()), slower


def witnesses(run: Any) -> tuple[Witness, ...]:
    """Return what there is on a GPU run; () on a CPU, where busy is exact."""
    if run.machine.kind != "gpu" or run.utilization is None:
        return ()
    limit = max(run.utilization - limits.WORTH_NAMING["launch"], 0)
    ahead = Witness(
        f"for {run.busy_at_least:.0%} of the time the device worked on a step that the host had "
        f"issued in full (stamps; threshold {limit:.0%})",
        works=run.utilization - run.busy_at_least < limits.WORTH_NAMING["launch"] or None,
    )
    span = float(run.busy[max(run.warmup - 1, 0), 1]), float(run.length_s)  # measured, s
    found = ahead, _sm_activity(run, *span), _power(run, *span)
    return tuple(witness for witness in found if witness is not None)


def deciding(seen: tuple[Witness, ...]) -> Witness | None:
    """Return the first witness that can tell; None where none can."""
    return next((witness for witness in seen if witness.works is not None), None)


def _sm_activity(run: Any, start: float, end: float) -> Witness | None:
    """GPM counts SM cycles with at least one warp: few also where kernels fill few SMs."""
    times = run.seconds(np.array([sample["t_ns"] for sample in run.telemetry]))
    shares = [(sample.get("gpm") or {}).get("sm") for sample in run.telemetry]
    shares = np.array(shares, float)  # None, not read, becomes NaN
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
    caps = [cap for s in run.telemetry if (cap := s.get("power_limit_w") or 0) > 0]
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
