"""The figure of a comparison: a device before a change and after it, on one time scale."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results.run import Run
from labkit.results.step_classes import AHEAD
from labkit.view.primitives import rows_in
from labkit.view.run_figure import draw_mean_steps
from labkit.view.run_header import device_of, run_header
from labkit.view.style import COMPUTE, WAIT, ms, our_style, page

SLOW_STEPS = 6  # of the slower run, in the stretch that both show
LANE_HEIGHTS = {"waits for data": 0.6, "busy": 1.6}
LANE_GAP = 0.25
TEETH_INCHES = 0.95


@our_style
def draw_pair(before: Run, after: Run) -> Figure:
    """Draw the same length of time of two runs, the earlier one above, and both mean steps.

    The intervals are true ones, from the middle of each run. A run without numbers is drawn alone.
    """
    if before.utilization is None or after.utilization is None:
        return after.plot(before=before)
    panels = [(0.34, TEETH_INCHES), (0.42, TEETH_INCHES), (0.80, rows_in(2))]
    figure, (earlier, later, steps) = page(run_header(after, before), panels)
    length_s = SLOW_STEPS * max(before.step_ms or 0.0, after.step_ms or 0.0) / 1e3
    length_s = min(length_s, _measured_s(before), _measured_s(after))
    for axes, run, name in ((earlier, before, "before"), (later, after, "this run")):
        _draw_stretch(axes, run, length_s)
        rate = f"{run.throughput:,.0f} samples/s"
        axes.set_title(f"{name}: {device_of(run)} busy {run.busy_text}, {rate}", loc="left")
    earlier.set_xticklabels([])
    later.set_xlabel(f"ms, {ms(length_s * 1e3)} ms from the middle of each run (true intervals)")
    draw_mean_steps(steps, after, before)
    return figure


def _measured_s(run: Run) -> float:
    """Return how long a run was measured for, warm-up left out, in seconds."""
    ends = run.stamps[max(run.warmup, 1) - 1 :, 5]
    return float(ends[-1] - ends[0])


def _draw_stretch(axes: Axes, run: Run, length_s: float) -> None:
    """Draw two lanes of true intervals: waiting for data, and the device computing."""
    first = max(run.warmup, 1)
    near = run.stamps[max(0, first - AHEAD) :]
    middle = float(run.stamps[first - 1 :, 5].mean())
    start = middle - length_s / 2
    lanes = ((0, "waits for data", WAIT), (4, "busy", COMPUTE))
    bottom = 0.0
    ticks = []
    for column, name, colour in lanes:
        height = LANE_HEIGHTS[name]
        intervals = near[:, column : column + 2] - start
        seen = intervals[(intervals[:, 1] > 0) & (intervals[:, 0] < length_s)]
        clipped_ms = 1e3 * np.clip(seen, 0, length_s)
        spans = [(left, right - left) for left, right in clipped_ms]
        axes.broken_barh(spans, (bottom, height), color=colour, linewidth=0.4)
        ticks.append(bottom + height / 2)
        bottom += height + LANE_GAP
    axes.set_yticks(ticks, [name for _, name, _ in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1e3 * length_s), ylim=(-0.15, bottom))
