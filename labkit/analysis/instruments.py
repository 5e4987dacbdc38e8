"""One run through every instrument: what each would have shown, and how wrong that is.

The device's true busy intervals are known (a GPU's from a step's first kernel to its last, gaps
between them included), so every instrument can be held against them: those that were read during
the run (NVML, nvidia-smi, psutil, GPM, the profiler), and the averaging windows and polling periods
of the usual dashboards, which are computed from the true intervals and labelled so.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np

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

# Telemetry keys that hold one share per sample, by kind of device: (key, name)
CURVES = {
    "gpu": (("gpu_now", "nvidia-smi, as NVML tells it"),),
    "cpu": (("cpu", "psutil: all CPU cores, loader included"),),
}
COUNTERS = (("sm", "GPM: SM activity"), ("tensor", "GPM: tensor activity"), ("dram", "GPM: DRAM"))


@dataclass(frozen=True)
class Reading:
    """What one instrument showed: `shares` (0 to 1, NaN where missing) from `times_s` on.

    `mean_error_pp` is the average of its line less the true utilization over the same time;
    `distance_pp` is how far its line was, on average, from what the device was doing at that
    moment (0 or 100 %); both in percentage points, None where it has too few readings to tell.
    """

    name: str
    source: str
    times_s: np.ndarray
    shares: np.ndarray
    mean_error_pp: float | None = None
    distance_pp: float | None = None

    @property
    def swing(self) -> float | None:
        """Between the 5th and the 95th percentile of its readings, 0 to 1."""
        known = self.shares[np.isfinite(self.shares)]
        if len(known) < 2:
            return None
        low, high = np.percentile(known, [5, 95])
        return float(high - low)

    @property
    def shows_teeth(self) -> bool | None:
        """Whether a person would see the device stop and start; None with under two readings."""
        return None if self.swing is None else self.swing >= TEETH


class Instruments:
    """Every instrument's view of one run; prints as a table, draws as a figure."""

    def __init__(self, run: Any, readings: list[Reading]):
        self.run, self.readings = run, readings

    def __iter__(self):
        return iter(self.readings)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: (instrument, where from, readings, mean error, distance, shows the teeth)."""
        head = ("instrument", "", "readings", "mean error", "off by", "shows the teeth")
        words = {True: "yes", False: "no", None: "-"}
        rows = [head]
        for reading in self.readings:
            count = str(len(reading.shares)) if len(reading.shares) else "none in this run"
            errors = (_points(reading.mean_error_pp, "+.1f"), _points(reading.distance_pp, ".1f"))
            rows.append((reading.name, reading.source, count, *errors, words[reading.shows_teeth]))
        return rows

    def plot(self) -> Any:
        """Draw every instrument's line over the true intervals as a matplotlib Figure."""
        from labkit.show import instruments_figure  # noqa: TID251 -- a door, opened on use

        return instruments_figure.draw(self)

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...]) -> str:
            style = " style='text-align:left'"
            return "<tr>" + "".join(f"<td{style}>{html.escape(c)}</td>" for c in cells) + "</tr>"

        return f"<table>{''.join(map(row, self.rows()))}</table>"


def instruments(run: Any) -> Instruments:
    """Return what every instrument showed of `run`, or would have; ValueError without two steps."""
    busy = run.busy
    if len(busy) < 2:
        raise ValueError(f"The run has {len(busy)} steps: an instrument needs two at least.")
    found = [_true(busy)]
    found += [_read(run, key, name) for key, name in CURVES.get(run.machine.kind, ())]
    if run.machine.kind == "gpu":
        found.append(_driver_samples(run))
        found += [_counter(run, key, name) for key, name in COUNTERS]
    found += [_profiler(run)] if getattr(run, "xray", None) is not None else []
    found += [_window(busy, *window) for window in WINDOWS]
    return Instruments(run, [_judged(reading, busy) for reading in found])


def _true(busy: np.ndarray) -> Reading:
    shares = np.tile([1.0, 0.0], len(busy))
    return Reading("step timing: the true intervals", READ, busy.ravel(), shares)


def _window(busy: np.ndarray, name: str, window_s: float, period_s: float) -> Reading:
    times = np.arange(window_s, busy[-1, 1] + 1e-9, period_s)
    shares = (busy_until(busy, times) - busy_until(busy, times - window_s)) / window_s
    return Reading(name, COMPUTED, times, shares)


def _read(run: Any, key: str, name: str) -> Reading:
    return _samples(run, name, [(event["t_ns"], event.get(key)) for event in run.telemetry])


def _counter(run: Any, key: str, name: str) -> Reading:
    values = [(event["t_ns"], (event.get("gpm") or {}).get(key)) for event in run.telemetry]
    return _samples(run, name, values)


def _driver_samples(run: Any) -> Reading:
    pairs = [pair for event in run.telemetry for pair in event.get("gpu") or []]
    return _samples(run, "NVML: the driver's own samples", pairs)


def _samples(run: Any, name: str, pairs: list[tuple[int, float | None]]) -> Reading:
    end = run.busy[-1, 1]
    known = [(run.seconds(t_ns), share) for t_ns, share in pairs if share is not None]
    inside = [(second, share) for second, share in known if 0 <= second <= end]
    times, shares = np.array(inside, dtype=float).reshape(-1, 2).T
    return Reading(name, READ, times, shares)


def _profiler(run: Any) -> Reading:
    """One number: the profiler looked at a few steps only."""
    share = run.xray.utilization
    shares = np.array([] if share is None else [share], dtype=float)
    return Reading("PyTorch Profiler: a few steps", READ, run.busy[-1:, 1][: len(shares)], shares)


def _judged(reading: Reading, busy: np.ndarray) -> Reading:
    """Return the reading with its errors, its line held from each value to the next."""
    end = busy[-1, 1]
    edges = np.append(reading.times_s[reading.times_s < end], end)
    shares = reading.shares[: len(edges) - 1]
    lengths = np.diff(edges)
    if lengths.sum() <= 0:
        return reading
    worked = np.diff(busy_until(busy, edges))
    # Over a stretch of length L with b busy seconds a line at r is off by r (L - b) + (1 - r) b
    distance = abs(shares * (lengths - worked) + (1 - shares) * worked).sum() / lengths.sum()
    error = ((shares * lengths).sum() - worked.sum()) / lengths.sum()
    return Reading(
        reading.name, reading.source, reading.times_s, reading.shares, 100 * error, 100 * distance
    )


def _points(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}} pp"
