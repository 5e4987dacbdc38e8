"""A growing run as the live view shows it: float32 numbers that the browser draws, and one line."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from labkit.results.run_data import RunData
from labkit.spec import KNOBS
from labkit.stamps.step_classes import split_steps
from labkit.view.display import stage_line

STEPS_SHOWN = 400  # at most: the busy time of each and the gap after it have two pixels each
POINTS = 256  # of the utilization over the whole run
SMOOTH_S = 0.5  # s, or so many steps, that each point is the mean of
SMOOTH_STEPS = 4
RECENT = 2_000  # latest steps, of which the mean is taken: all of a long run take too long
WINDOWS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
USUAL_WINDOW_S = 2.0


# live_frame.js reads both by these names, in this order


class FrameHeader(NamedTuple):
    """The numbers that a frame begins with; its rows of steps and its curve follow."""

    rows: int
    curve_points: int
    serial: int  # of the run, among those of one canvas
    start_s: float  # of the window in which steps are drawn
    start_rest_s: float  # what float32 loses of it, late in a long run
    window_s: float
    length_s: float  # of the run
    steps: int  # of the run
    warmup_s: float
    accumulation_steps: int
    wait_ms: float  # of the mean step, as the three below
    copy_ms: float
    compute_ms: float
    other_ms: float


class StepRow(NamedTuple):
    """The numbers of a step: when it was in each part, since the window's start, and how long."""

    busy_from_s: np.ndarray
    busy_to_s: np.ndarray
    wait_from_s: np.ndarray
    wait_to_s: np.ndarray
    copy_from_s: np.ndarray
    copy_to_s: np.ndarray
    wait_ms: np.ndarray
    copy_ms: np.ndarray
    other_ms: np.ndarray


def live_frame(run: RunData, serial: int = 0) -> bytes:
    """Return all that the canvas draws, float32: a FrameHeader, StepRows, the curve.

    `serial` numbers the runs of one canvas; b"" before the first step.
    """
    if not run.steps:
        return b""
    start_s, window_s = window(run)
    rows = step_rows(run, start_s)
    curve = curve_of(run)
    wait_ms, copy_ms, compute_ms, launch_ms, other_ms = mean_ms(run)
    header = FrameHeader(
        rows=len(rows),
        curve_points=len(curve),
        serial=serial,
        start_s=start_s,
        start_rest_s=start_s - float(np.float32(start_s)),
        window_s=window_s,
        length_s=run.length_s,
        steps=run.steps,
        warmup_s=run.warm_s,
        accumulation_steps=run.pipeline.accumulation_steps or 1,
        wait_ms=wait_ms,
        copy_ms=copy_ms,
        compute_ms=compute_ms,
        other_ms=launch_ms + other_ms,
    )
    return np.array(header, np.float32).tobytes() + rows.tobytes() + curve.tobytes()


@functools.lru_cache(maxsize=1)
def recent_steps(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return the stamps (n, 6) of the latest steps, s, and what `split_steps` makes of them."""
    stamps = run.stretch(max(0, run.steps - RECENT - 1), run.steps)
    return stamps, split_steps(stamps)


def mean_ms(run: RunData) -> np.ndarray:
    """Return the mean measured step by class (5,), ms: of the latest; 0 before there is one."""
    _, spent = recent_steps(run)
    measured = spent[-min(RECENT, run.steps - run.warmup) :]
    return 1e3 * measured.mean(axis=0) if len(measured) else np.zeros(spent.shape[1])


def window(run: RunData) -> tuple[float, float]:
    """Return start and width, s, of what is shown: 2 s, unless its steps would blur or miss."""
    length_s = run.length_s
    step_s = length_s / run.steps
    fits = [width for width in WINDOWS_S if 4 * step_s <= width <= (STEPS_SHOWN - 1) * step_s]
    width = min(fits, key=lambda width: abs(width - USUAL_WINDOW_S), default=USUAL_WINDOW_S)
    return max(0.0, length_s - width), width


def step_rows(run: RunData, start_s: float) -> np.ndarray:
    """Return the StepRows (n, 9), float32, of the steps since `start_s`, to the last one done.

    How long the parts of the first step took is NaN: nothing is known of the time before it.
    """
    stamps, spent = recent_steps(run)
    latest = stamps[-STEPS_SHOWN - 1 :] - start_s
    wait_from, wait_to, copy_from, copy_to, busy_from, busy_to = latest.T
    unknown = np.full((1, spent.shape[1]), np.nan)
    spent_ms = np.vstack([unknown, 1e3 * spent[-STEPS_SHOWN:]])
    row = StepRow(
        busy_from_s=busy_from,
        busy_to_s=busy_to,
        wait_from_s=wait_from,
        wait_to_s=wait_to,
        copy_from_s=copy_from,
        copy_to_s=copy_to,
        wait_ms=spent_ms[:, 0],
        copy_ms=spent_ms[:, 1],
        other_ms=spent_ms[:, 3:].sum(axis=1),
    )
    is_shown = busy_to >= 0
    return np.column_stack(row)[is_shown][-STEPS_SHOWN:].astype(np.float32)


def curve_of(run: RunData) -> np.ndarray:
    """Return (n, 2) float32: time, s, and utilization around it, %; none of very few steps."""
    length_s = run.length_s
    wide_s = max(min(SMOOTH_S, length_s / 10), SMOOTH_STEPS * length_s / run.steps)
    if not length_s or wide_s > length_s:
        return np.empty((0, 2), np.float32)
    width = max(1, round(wide_s / length_s * POINTS))
    mean = np.full(width, 1 / width)
    smooth = [np.convolve(values, mean, "valid") for values in run.timeline(POINTS)]
    return np.column_stack([smooth[0], 100 * smooth[1]]).astype(np.float32)


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
        if run.mfu_text:
            parts.append(run.mfu_text)
        parts.append(f"{run.throughput:.0f} samples/s")
        parts.append(f"waiting for data {spent_ms[0]:.1f} of {spent_ms.sum():.1f} ms a step")
    if run.pipeline.simulated_delay:
        parts.append(f"simulated delay: {run.pipeline.simulated_delay}")
    return " · ".join(parts)
