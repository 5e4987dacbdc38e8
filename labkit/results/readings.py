"""The instruments' readings of a run while it trained, on the run's own clock."""

from __future__ import annotations

import numpy as np

from labkit.results.run_log import RunLog
from labkit.stamps.record import Event

Readings = tuple[np.ndarray, np.ndarray]
"""Of one metric: moments (n,), s, and values (n,), NaN where there is a gap."""


def readings(run: RunLog, since: float = 0.0) -> list[tuple[float, Event]]:
    """Return the telemetry from `since` (s) to the end of the last step, each after its moment."""
    moments = run.seconds([event["t_ns"] for event in run.telemetry]).tolist()
    last = run.length_s if run.steps else -1.0
    found = zip(moments, run.telemetry, strict=True)
    return [(moment, event) for moment, event in found if since <= moment <= last]


def readings_of(run: RunLog, key: str, since: float = 0.0) -> Readings:
    """Return a metric that was read once per telemetry event, GPM's too."""
    found = readings(run, since)
    values = [(event.get("gpm") or {}).get(key, event.get(key)) for _, event in found]
    return np.array([moment for moment, _ in found]), np.array(values, dtype=float)  # None is NaN


def driver_readings(run: RunLog) -> Readings:
    """Return the utilization that the driver had buffered, each reading with its own stamp."""
    pairs: list[tuple[int, float | None]] = []
    for event in run.telemetry if run.steps else ():
        buffered = event.get("gpu")
        pairs += [(event["t_ns"], None)] if buffered is None else buffered
    moments = run.seconds([t_ns for t_ns, _ in pairs])
    inside = (moments >= 0) & (moments <= run.length_s)
    return moments[inside], np.array([value for _, value in pairs], dtype=float)[inside]
