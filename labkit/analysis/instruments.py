"""One run through every instrument: what each would have shown, and how wrong that is.

The device's true busy intervals are known (a GPU's from a step's first kernel to its last, gaps
between them included), so every instrument can be held against them: those that were read during
the run (NVML, nvidia-smi, psutil, GPM, the profiler), and the averaging windows and polling periods
of the usual dashboards, which are computed from the true intervals and labelled so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.timeline import busy_until

COMPUTED = "computed from the true intervals"
READ = "read during the run"

# (name, averaging window in s, polling period in s). NVML documents its utilization window as 1/6
# to 1 s by product; `nvidia-smi -l 1` and `watch` (2 s) poll it; W&B samples every 15 s by default
WINDOWS = (
    ("driver window of 1/6 s", 1 / 6, 1 / 6),
    ("driver window of 1 s (nvidia-smi -l 1)", 1.0, 1.0),
    ("1 s window every 2 s (watch nvidia-smi)", 1.0, 2.0),
    ("1 s window every 10 s", 1.0, 10.0),
    ("1 s window every 15 s (W&B's default)", 1.0, 15.0),
)
TEETH = 0.5  # readings that swing over half of the scale show that the device stops and starts

COUNTERS = (("sm", "GPM: SM activity"), ("tensor", "GPM: tensor activity"), ("dram", "GPM: DRAM"))


@dataclass(frozen=True)
class Reading:
    """The readings of one instrument: `shares` (0 to 1) from `times_s` on.

    `mean_error_pp` is the average of its line less the true utilization over the same time;
    `distance_pp` is how far its line was, on average, from what the device was doing at that
    moment (0 or 100%); both in percentage points, None where it has too few readings to tell.
    """

    name: str
    source: str
    times_s: np.ndarray
    shares: np.ndarray
    mean_error_pp: float | None = None
    distance_pp: float | None = None

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
    end = busy[-1, 1]
    teeth = np.tile([1.0, 0.0], len(busy))
    found = [_judged("step timing: the true intervals", READ, busy.ravel(), teeth, busy)]
    read: list[tuple[str, tuple[np.ndarray, np.ndarray]]] = []
    if run.machine.kind == "cpu":
        read.append(("psutil: all CPU cores, loader included", samples(run, "cpu")))
    elif run.machine.kind == "gpu":
        read.append(("nvidia-smi, as NVML tells it", samples(run, "gpu_now")))
        read.append(("NVML: the driver's own samples", driver_samples(run)))
        for key, name in COUNTERS:
            values = [(event["t_ns"], (event.get("gpm") or {}).get(key)) for event in run.telemetry]
            read.append((name, _during(run, values)))
    for name, (times, shares) in read:
        known = np.isfinite(shares)
        found.append(_judged(name, READ, times[known], shares[known], busy))
    if getattr(run, "xray", None) is not None:  # one number: it looked at a few steps only
        share = np.array([run.xray.utilization])
        found.append(_judged("PyTorch Profiler: a few steps", READ, busy[-1:, 1], share, busy))
    for name, window_s, period_s in WINDOWS:
        times = np.arange(window_s, end + 1e-9, period_s)
        shares = (busy_until(busy, times) - busy_until(busy, times - window_s)) / window_s
        found.append(_judged(name, COMPUTED, times, shares, busy))
    return Instruments(run, found)


def samples(run: Any, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a metric that was read once per telemetry event: (seconds, shares, NaN for gaps)."""
    return _during(run, [(event["t_ns"], event.get(key)) for event in run.telemetry])


def driver_samples(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that the driver had buffered, each with a stamp of its own."""
    pairs: list[Any] = []
    for event in run.telemetry:
        buffered = event.get("gpu")
        pairs += [(event["t_ns"], None)] if buffered is None else buffered
    return _during(run, pairs)


def _during(run: Any, pairs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Turn (t_ns, share or None) into arrays, of the time in which the run trained."""
    seconds = np.array([run.seconds(t_ns) for t_ns, _ in pairs], dtype=float)
    shares = np.array([np.nan if share is None else share for _, share in pairs], dtype=float)
    inside = (seconds >= 0) & (seconds <= run.busy[-1, 1])
    return seconds[inside], shares[inside]


def _judged(
    name: str, source: str, times: np.ndarray, shares: np.ndarray, busy: np.ndarray
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
