"""A growing run as the live view shows it: numbers that the browser draws, and one line."""

from __future__ import annotations

import functools
import math

import numpy as np

from labkit.results.run_data import RunData
from labkit.spec import KNOBS
from labkit.stamps.step_classes import split_steps
from labkit.view.display import stage_line

STEPS_SHOWN = 400  # at most: the busy time of each and the gap after it have two pixels each
POINTS = 256  # of the utilization over the whole run
SMOOTH = 12  # of them, of which each drawn one is the mean; as many as four steps have, if more
RECENT = 2_000  # latest steps, of which the mean is taken: all of a long run take too long
USUAL_WINDOW_S = 2.0
Frame = dict[str, object]


def live_frame(run: RunData, serial: int = 0) -> Frame:
    """Return all that the canvas draws (see live_frame.js); {} before the first step.

    `serial` numbers the runs of one canvas. The arrays are float32.
    """
    if not run.steps:
        return {}
    start_s, window_s = window(run)
    return {
        "serial": serial,
        "start": start_s,
        "end": start_s + window_s,
        "length": run.length_s,
        "steps": run.steps,
        "warmup": run.warm_s,
        "accumulationSteps": run.pipeline.accumulation_steps or 1,
        "means": dict(zip(("wait", "copy", "compute", "other"), mean_ms(run), strict=True)),
        "rows": step_rows(run, start_s).tobytes(),
        "curve": curve_of(run).tobytes(),
    }


@functools.lru_cache(maxsize=1)
def recent_steps(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return the stamps (n, 6) of the latest steps, s, and what they took by part (n, 4), ms.

    Of the first step that is NaN: nothing is known of the time before it.
    """
    stamps = run.stretch(max(0, run.steps - RECENT - 1), run.steps)
    spent = split_steps(stamps)
    parts = np.column_stack([spent[:, :3], spent[:, 3:].sum(axis=1)])
    return stamps, 1e3 * np.vstack([np.full(4, np.nan), parts])


def mean_ms(run: RunData) -> list[float]:
    """Return the mean measured step by part, ms: of the latest; 0 before there is one."""
    _, spent_ms = recent_steps(run)
    measured = spent_ms[1:][-min(RECENT, run.steps - run.warmup) :]
    return measured.mean(axis=0).tolist() if len(measured) else [0.0] * 4


def window(run: RunData) -> tuple[float, float]:
    """Return start and width, s, of what is shown: 2 s, unless its steps would blur or miss."""
    step_s = run.length_s / run.steps
    width = np.clip(USUAL_WINDOW_S, 4 * step_s, 0.75 * STEPS_SHOWN * step_s)
    width_s = float(f"{width:.0e}")  # one digit: it does not change with every frame
    return max(0.0, run.length_s - width_s), width_s


def step_rows(run: RunData, start_s: float) -> np.ndarray:
    """Return stamps since the window's start, s, and parts, ms, of the steps in it (n, 10)."""
    stamps, spent_ms = recent_steps(run)
    rows = np.column_stack([stamps - start_s, spent_ms])
    return rows[rows[:, 5] >= 0][-STEPS_SHOWN:].astype(np.float32)


def curve_of(run: RunData) -> np.ndarray:
    """Return (n, 2) float32: time, s, and utilization around it, %; none of very few steps."""
    width = max(SMOOTH, math.ceil(4 * POINTS / run.steps))
    if width > POINTS or not run.length_s:
        return np.empty((0, 2), np.float32)
    mean = np.full(width, 1 / width)
    seconds, shares = (np.convolve(each, mean, "valid") for each in run.timeline(POINTS))
    return np.column_stack([seconds, 100 * shares]).astype(np.float32)


def live_line(run: RunData) -> str:
    """Say in one line how far the run is and what it has measured since its warm-up."""
    if not run.steps:
        return stage_line(run)
    asked = run.pipeline.steps
    is_timed = asked == KNOBS["steps"].high  # the clock ends it
    parts = [f"step {run.steps}" if is_timed else f"step {run.steps} of {asked}"]
    if run.throughput:
        spent_ms = mean_ms(run)
        parts.append(f"{run.machine.kind.upper()} busy {run.busy_text}")
        parts += filter(None, [run.mfu_text])
        parts.append(f"{run.throughput:.0f} samples/s")
        parts.append(f"waiting for data {spent_ms[0]:.1f} of {sum(spent_ms):.1f} ms a step")
    if run.pipeline.simulated_delay:
        parts.append(f"simulated delay: {run.pipeline.simulated_delay}")
    return " · ".join(parts)
