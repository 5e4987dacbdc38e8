"""A growing run as the live view shows it: numbers that the browser draws, and one line."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.results.log_data import LogData
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import split_steps
from labkit.view import PARTS

STEPS_SHOWN = 400  # at most: the busy time of each and the gap after it have two pixels each
USUAL_WINDOW_S = 2.0
Frame = dict[str, Any]


def live_frame(run: RunData, serial: int = 0) -> Frame:
    """Return all that the canvas draws (see live_frame.js); {} before the first step.

    `serial` numbers the runs of one canvas. The arrays are float32: of each step in the window its
    stamps since the window's start, s, and what it took by part, ms; of the whole run time, s, and
    the utilization around it, %.
    """
    if not run.length_s:
        return {}
    step_s = run.length_s / run.steps
    # Unless its steps would blur or miss; one digit, so that it does not change with every frame
    most_s = 0.75 * STEPS_SHOWN * step_s
    window_s = float(f"{np.clip(USUAL_WINDOW_S, 4 * step_s, most_s):.0e}")
    start_s = max(0.0, run.length_s - window_s)
    stamps = run.clock.stamps(max(0, run.steps - STEPS_SHOWN - 1))
    # Nothing is known of the time before the first step
    split_ms = np.pad(1e3 * split_steps(stamps), ((1, 0), (0, 0)), constant_values=np.nan)
    rows = np.column_stack([stamps - start_s, split_ms[:, :3], split_ms[:, 3:].sum(axis=1)])
    rows = rows[rows[:, 5] >= 0][-STEPS_SHOWN:]
    shares, edges = busy_curve(run)
    curve = np.column_stack([(edges[:-1] + edges[1:]) / 2, 100 * shares])
    return {
        "serial": serial,
        "device": run.machine.kind.upper(),
        "mark": run.mark or "",
        "start": start_s,
        "end": start_s + window_s,
        "length": run.length_s,
        "steps": run.steps,
        "warmup": run.warm_s,
        "accumulationSteps": run.pipeline.accumulation_steps or 1,
        "means": mean_step(run),
        "rows": rows.astype(np.float32).tobytes(),
        "curve": curve.astype(np.float32).tobytes(),
    }


def mean_step(run: RunData) -> dict[str, float]:
    """Return how long the mean step took, ms, by part."""
    return {part: getattr(run, f"{part}_ms") or 0.0 for part in PARTS}


def busy_curve(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's utilization in equal bins, and their edges, s.

    A bin has three steps or more: finer ones would show single teeth, aliased.
    """
    bins = int(np.clip(run.steps // 3, 4, 120))
    return run.clock.utilization(bins)[1], np.linspace(0, run.length_s, bins + 1)


def live_line(run: RunData) -> str:
    """Say in one line how far the run is and what it has measured since its warm-up."""
    if not run.steps:
        return stage_line(run)
    parts = [f"step {run.steps}"]
    if run.throughput:
        parts.append(f"{run.machine.kind.upper()} busy {run.busy_text}")
        parts.append(f"{run.throughput:.0f} samples/s")
        parts.append(f"waiting for data {run.wait_ms:.1f} of {run.step_ms:.1f} ms a step")
    if run.pipeline.simulated_delay:
        parts.append(f"simulated delay: {run.pipeline.simulated_delay}")
    return " · ".join(parts)


def stage_line(run: LogData) -> str:
    """Say what a run that has not measured anything yet is busy with."""
    stage = run.event("stage") or {"name": "starting"}
    done = f" {stage['done']}/{stage['total']}" if stage.get("total") else ""
    return f"{stage['name']}{done}"
