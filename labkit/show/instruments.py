"""What the machine's own instruments said during a run, as curves on the run's clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.results.run import Run
from labkit.show.style import INSTRUMENT

# One curve: (label, seconds (n,), shares 0 to 1 (n,) with NaN where a sample is missing, style)
Curve = tuple[str, np.ndarray, np.ndarray, dict[str, Any]]

MANY = 100  # readings of the telemetry, from which on their dots would make one band
DOTS = {"marker": ".", "markersize": 5, "linestyle": "none", "color": "#0072B2", "zorder": 3}
LINE = {"marker": ".", "markersize": 3, "linewidth": 1.0, "color": INSTRUMENT, "zorder": 3}


def instruments(run: Run) -> list[Curve]:
    """Return the utilization curves that the run's telemetry has; none where it has none."""
    curves = [
        ("NVML's samples", *_driver_samples(run), DOTS),
        ("nvidia-smi", *_readings(run, "gpu_now"), LINE | {"drawstyle": "steps-post"}),
    ]
    if run.machine.kind == "cpu":
        curves = [("all CPU cores (psutil)", *_readings(run, "cpu"), LINE)]
    thin = {"markersize": 1.5, "alpha": 0.6} if len(run.telemetry) > MANY else {}
    return [(*curve, style | thin) for *curve, style in curves if np.isfinite(curve[2]).any()]


def _driver_samples(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The samples that the driver had buffered, each with a stamp of its own."""
    pairs: list[Any] = []
    for event in run.telemetry:
        samples = event.get("gpu")
        pairs += samples if isinstance(samples, list) else [(event.get("t_ns"), None)]
    return _during(run, pairs)


def _readings(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric that was read once per telemetry event."""
    return _during(run, [(event.get("t_ns"), event.get(name)) for event in run.telemetry])


def _during(run: Run, pairs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Turn (t_ns, share or None) into arrays, of the time in which the run trained.

    A record may come from anywhere and its telemetry is not checked: what is no sample is left out.
    """
    sound = [pair for pair in pairs if isinstance(pair, (list, tuple)) and len(pair) == 2]
    sound = [(t_ns, share) for t_ns, share in sound if isinstance(t_ns, int)]
    seconds = np.array([run.seconds(t_ns) for t_ns, _ in sound], dtype=float)
    shares = np.array([s if isinstance(s, (int, float)) else np.nan for _, s in sound], dtype=float)
    inside = (seconds >= 0) & (seconds <= run.busy[-1, 1])
    return seconds[inside], shares[inside]
