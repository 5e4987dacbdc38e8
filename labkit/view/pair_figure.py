"""The figure of a comparison: a device before a change and after it, on one time scale."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.results.run import Run
from labkit.results.step_classes import AHEAD
from labkit.view.primitives import draw_lanes, rows_in
from labkit.view.run_figure import draw_mean_steps, end_of, teeth_lanes
from labkit.view.run_header import device_of, run_header
from labkit.view.style import ms, our_style, page

SLOW_STEPS = 6  # of the slower run, in the stretch that both show
PANELS_IN = [(0.34, 0.95), (0.42, 0.95), (0.80, rows_in(2))]


@our_style
def draw_pair(before: Run, after: Run) -> Figure:
    """Draw the same length of time of two runs, the earlier one above, and both mean steps.

    The intervals are true ones, from the middle of each run. A run without numbers is drawn alone.
    """
    if before.utilization is None or after.utilization is None:
        return after.plot(before=before)
    figure, (earlier, later, steps) = page(run_header(after, before), PANELS_IN)
    longest_ms = max(before.step_ms or 0.0, after.step_ms or 0.0)
    measured_s = [run.length_s - end_of(run, run.warmup) for run in (before, after)]
    length_s = min(SLOW_STEPS * longest_ms / 1e3, *measured_s)
    _draw_stretch(earlier, "before", before, length_s)
    _draw_stretch(later, "this run", after, length_s)
    earlier.set_xticklabels([])
    later.set_xlabel(f"ms, {ms(length_s * 1e3)} ms from the middle of each run (true intervals)")
    draw_mean_steps(steps, after, before)
    return figure


def _draw_stretch(axes: Axes, name: str, run: Run, length_s: float) -> None:
    """Draw the lanes of a run's figure for a stretch in the middle of the run."""
    first = max(run.warmup, 1)
    near = run.stretch(max(0, first - AHEAD), run.steps)
    middle = float(run.stretch(first - 1, run.steps)[:, 5].mean())
    near_ms = 1e3 * (near - (middle - length_s / 2))
    draw_lanes(axes, teeth_lanes(run, near_ms), 0, 1e3 * length_s)
    rate = f"{run.throughput:,.0f} samples/s"
    axes.set_title(f"{name}: {device_of(run)} busy {run.busy_text}, {rate}", loc="left")
