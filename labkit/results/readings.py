"""The instruments' readings of a run while it trained, on the run's own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from labkit.results.run_data import RunData


def readings_of(run: RunData, key: str, since: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return what the telemetry has of a metric from `since` (s) to the end of the last step.

    Moments (n,), s, and values (n,), NaN where there is a gap.
    """
    read = [
        (each["t_ns"], (each.get("gpm") or {}).get(key, each.get(key))) for each in run.telemetry
    ]
    table = np.array(read, dtype=float).reshape(-1, 2)  # None is NaN
    moments = run.seconds(table[:, 0])
    inside = (moments >= since) & (moments <= run.length_s) & (run.steps > 0)
    return moments[inside], table[inside, 1]


def mean_of(run: RunData, key: str, since: float = 0.0, fewest: int = 1) -> float | None:
    """Return the mean of a metric; None where there are fewer readings than `fewest`."""
    _, values = readings_of(run, key, since)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) >= fewest else None
