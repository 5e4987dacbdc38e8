"""What instruments show of a run, how wrong each is, and which can tell whether a busy GPU worked.

Each is held against the device's known busy intervals: those that were read during the run, and the
usual dashboards, computed from the intervals and labelled so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cost import power
from labkit.results.result import Result, Table
from labkit.results.run import Run
from labkit.results.step_classes import busy_until

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPUTED = "computed from the true intervals"
READ = "read during the run"
# Name, averaging window (s), polling period (s). NVML documents its utilization window as 1/6 to
# 1 s by product; `nvidia-smi -l 1` and `watch` (2 s) poll it; W&B samples every 15 s by default.
WINDOWS = (
    ("driver window of 1/6 s", 1 / 6, 1 / 6),
    ("driver window of 1 s (nvidia-smi -l 1)", 1.0, 1.0),
    ("1 s window every 2 s (watch nvidia-smi)", 1.0, 2.0),
    ("1 s window every 15 s (W&B's default)", 1.0, 15.0),
)
COUNTERS = (("sm", "GPM: SM activity"), ("tensor", "GPM: tensor activity"), ("dram", "GPM: DRAM"))
Samples = tuple[np.ndarray, np.ndarray]  # seconds (n,), values 0 to 1 (n,) with NaN for gaps
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

    run: Run
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
            row = [reading.name, reading.source, len(reading.shares) or "none in this run"]
            row.append(points(reading.mean_error_pp, "+.1f"))
            row.append(points(reading.distance_pp, ".1f"))
            row.append({True: "yes", False: "no", None: None}[reading.shows_teeth])
            rows.append(row)
        head = ("instrument", "", "readings", "mean error", "off by", "shows the teeth")
        return Table(rows, head=head, left=(0, 1, 5))


def points(value: float | None, digits: str) -> str | None:
    """Return percentage points as text; None where there are none."""
    return None if value is None else f"{value:{digits}} pp"


def instruments(run: Run) -> Instruments:
    """Return what every instrument showed of `run`, or would have shown.

    Raises ValueError where the run has fewer than two steps, or no times of its device's own.
    """
    busy = run.busy
    if len(busy) < 2:
        raise ValueError(f"The run has {len(busy)} steps: an instrument needs two at least.")
    if run.launches_only:
        raise ValueError("When the device was busy is not known: no instrument can be judged.")
    teeth = np.tile([1.0, 0.0], len(busy))
    readings = [judged(busy, "step timing: the true intervals", READ, busy.ravel(), teeth)]
    for name, (times, shares) in read_during(run).items():
        known = np.isfinite(shares)
        readings.append(judged(busy, name, READ, times[known], shares[known]))
    xray = run.xray
    if xray is not None and xray.device_kind == run.machine.kind:  # else it saw the host alone
        share = np.array([xray.utilization])  # one number: it looked at a few steps only
        readings.append(judged(busy, "PyTorch Profiler: a few steps", READ, busy[-1:, 1], share))
    for name, window_s, period_s in WINDOWS:
        times = np.arange(window_s, busy[-1, 1] + 1e-9, period_s)
        worked = busy_until(busy, times) - busy_until(busy, times - window_s)
        readings.append(judged(busy, name, COMPUTED, times, worked / window_s))
    return Instruments(run, readings)


def read_during(run: Run) -> dict[str, Samples]:
    """Return the samples of each instrument that was read during the run, by its name."""
    if run.machine.kind != "gpu":
        return {"psutil: all CPU cores, loader included": samples(run, "cpu")}
    found = {
        "nvidia-smi, as NVML tells it": samples(run, "gpu_now"),
        "NVML: the driver's own samples": driver_samples(run),
    }
    return found | {name: samples(run, key) for key, name in COUNTERS}


def samples(run: Run, key: str) -> Samples:
    """Return a metric that was read once per telemetry event, GPM's too."""
    pairs = []
    for event in run.telemetry:
        counters = event.get("gpm") or {}
        pairs.append((event["t_ns"], counters.get(key, event.get(key))))
    return while_training(run, pairs)


def driver_samples(run: Run) -> Samples:
    """Return the samples that the driver had buffered, each with a stamp of its own."""
    pairs: list[tuple[int, float | None]] = []
    for event in run.telemetry:
        buffered = event.get("gpu")
        pairs += [(event["t_ns"], None)] if buffered is None else buffered
    return while_training(run, pairs)


def while_training(run: Run, pairs: list[tuple[int, float | None]]) -> Samples:
    """Return the (t_ns, share or None) of the time in which the run trained, as arrays."""
    seconds = run.seconds(np.array([t_ns for t_ns, _ in pairs]))
    shares = np.array([share for _, share in pairs], dtype=float)  # None becomes NaN
    inside = (seconds >= 0) & (seconds <= run.length_s)
    return seconds[inside], shares[inside]


def judged(
    busy: np.ndarray, name: str, source: str, times: np.ndarray, shares: np.ndarray
) -> Reading:
    """Return a Reading with its errors, its line held from each value to the next."""
    end = busy[-1, 1]
    edges = np.append(times[times < end], end)
    lengths = np.diff(edges)
    held = shares[: len(lengths)]
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


def throttled(run: Run) -> tuple[float, float | None] | None:
    """Return the share of samples in which heat held a GPU's clock down, and how far (0 to 1).

    The power limit does not count: a card that works hard is held to it. None: never, or not known.
    """
    if not run.steps:
        return None
    _, reasons = samples(run, "clock_reasons")
    _, mhz = samples(run, "sm_mhz")
    known = np.isfinite(reasons)
    is_hot = np.nan_to_num(reasons).astype(int) & HEAT > 0
    if not is_hot.any():
        return None
    share = float(is_hot.sum() / known.sum())
    if not np.isfinite(mhz[is_hot]).any():
        return share, None
    return share, 1 - float(np.nanmean(mhz[is_hot]) / np.nanmax(mhz[known]))


def witnesses(run: Run) -> tuple[Witness, ...]:
    """Return what there is on a GPU run; () on a CPU, where busy is exact."""
    if run.machine.kind != "gpu" or run.utilization is None:
        return ()
    limit = max(run.utilization - limits.WORTH_NAMING["launch"], 0)
    at_least = run.busy_at_least or 0.0
    ahead = Witness(
        f"for {at_least:.0%} of the time the device worked on a step that the host had "
        f"issued in full (stamps; threshold {limit:.0%})",
        works=run.utilization - at_least < limits.WORTH_NAMING["launch"] or None,
    )
    start = float(run.busy[max(run.warmup - 1, 0), 1])
    end = float(run.length_s)
    found = [ahead, sm_activity(run, start, end), power_drawn(run, start, end)]
    return tuple(witness for witness in found if witness is not None)


def deciding(seen: tuple[Witness, ...]) -> Witness | None:
    """Return the first witness that can tell; None where none can."""
    return next((witness for witness in seen if witness.works is not None), None)


def sm_activity(run: Run, start: float, end: float) -> Witness | None:
    """GPM counts SM cycles with at least one warp: few also where kernels fill few SMs."""
    times = run.seconds(np.array([sample["t_ns"] for sample in run.telemetry]))
    counters = [sample.get("gpm") or {} for sample in run.telemetry]
    shares = np.array([each.get("sm") for each in counters], float)  # None, not read, becomes NaN
    lengths = np.diff(times)  # each reading is the mean since the one before
    is_measured = (times[:-1] >= start) & (times[1:] <= end)
    kept = is_measured & (lengths > 0) & np.isfinite(shares[1:])
    busy_s = np.diff(busy_until(run.busy, np.nan_to_num(times)))[kept].sum()
    if kept.sum() < limits.MIN_READINGS or busy_s <= 0:
        return None
    share = float((shares[1:] * lengths)[kept].sum() / busy_s)
    said = f"SMs had a warp to run for {min(share, 1):.0%} of the time that counts as busy (GPM"
    return word(said, share, share, limits.SMS_WORK, limits.SMS_REST)


def power_drawn(run: Run, start: float, end: float) -> Witness | None:
    """A card that waits draws little. So do kernels that use little of it."""
    caps = [sample.get("power_limit_w") or 0 for sample in run.telemetry]
    caps = [cap for cap in caps if cap > 0]
    watts, _ = power(run)
    if not watts:  # a card without an energy counter: its power readings
        watts = mean_reading(run, start + POWER_LAGS_S, end)
    if not caps or watts is None or not run.utilization:
        return None
    drawn = watts / float(np.median(caps))
    said = f"the card drew {drawn:.0%} of its power limit ({watts:.0f} W; NVML"
    # While busy it drew at least the mean, and at most what it is if nothing was drawn while idle
    most = drawn / run.utilization
    return word(said, drawn, most, limits.POWER_WORKS, limits.POWER_RESTS)


def mean_reading(run: Run, start: float, end: float) -> float | None:
    """Return the mean of the power that was read (W) from `start` to `end`; None: too seldom."""
    watts = [
        sample["power_w"]
        for sample in run.telemetry
        if sample.get("power_w") is not None and start <= run.seconds(sample["t_ns"]) <= end
    ]
    return float(np.mean(watts)) if len(watts) >= limits.MIN_READINGS else None


def word(said: str, least: float, most: float, works: float, rests: float) -> Witness:
    """Judge a reading that lies between `least` and `most`."""
    if least >= works:
        return Witness(f"{said}; threshold {works:.0%})", True)
    if most < rests:
        return Witness(f"{said}; threshold {rests:.0%})", False, max(most, 0.0) / works)
    return Witness(f"{said}; between {rests:.0%} and {works:.0%} it tells nothing)")
