"""The instruments' readings of a run while it trained, on the run's own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.results.record import Event

if TYPE_CHECKING:
    from labkit.results.run import Run
    from labkit.results.run_log import RunLog

Readings = tuple[np.ndarray, np.ndarray]
"""Of one metric: moments (n,), s, and values (n,), NaN where there is a gap."""


def readings(run: RunLog, since: float = 0.0) -> list[tuple[float, Event]]:
    """Return the telemetry from `since` (s) to the end of the last step, each after its moment."""
    moments, inside = _while_it_trained(run, [event["t_ns"] for event in run.telemetry], since)
    found = zip(moments.tolist(), run.telemetry, inside, strict=True)
    return [(moment, event) for moment, event, is_inside in found if is_inside]


def readings_of(run: RunLog, key: str, since: float = 0.0) -> Readings:
    """Return a metric that was read once per telemetry event, GPM's too."""
    found = readings(run, since)
    moments = [moment for moment, _ in found]
    values = [(event.get("gpm") or {}).get(key, event.get(key)) for _, event in found]
    return np.array(moments), np.array(values, dtype=float)  # None becomes NaN


def driver_readings(run: RunLog) -> Readings:
    """Return the utilization that the driver had buffered, each reading with its own stamp."""
    pairs: list[tuple[int, float | None]] = []
    for event in run.telemetry:
        buffered = event.get("gpu")
        pairs += [(event["t_ns"], None)] if buffered is None else buffered
    moments, inside = _while_it_trained(run, [t_ns for t_ns, _ in pairs])
    values = np.array([value for _, value in pairs], dtype=float)
    return moments[inside], values[inside]


def after_warmup(run: Run) -> float:
    """Return when the warm-up's last step was over, s."""
    return float(run.busy[max(run.warmup - 1, 0), 1])


def _while_it_trained(
    run: RunLog, at_ns: list[int], since: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments (n,) in s, and which of them (n,) lie within the training from `since` on.

    None does before there is a step, or in a pause between two passes.
    """
    moments = run.seconds(np.array(at_ns, dtype=np.int64))
    return moments, (moments >= since) & (moments <= run.length_s) & (run.steps > 0)
