"""The figures of `lk.trace`."""

from __future__ import annotations

import numpy as np
import pandas
from matplotlib.figure import Figure

from labkit.text import counted
from labkit.traces.breakdown import Breakdown, TraceComparison, words_of
from labkit.view.rows_figure import plot
from labkit.view.style import INK, draw_lanes, our_style, page, stack

LANE_IN = 0.26  # inches that a lane is high
AROUND_IN = 0.5
MOST_KERNELS = 6


def draw_trace(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    rows = [(words_of(name), us, "time of a step") for name, us in breakdown.class_us.items()]
    rows += [(f"idle: {words_of(name)}", us, "idle") for name, us in breakdown.idle.items()]
    for place, each in enumerate(breakdown.top_kernels[:MOST_KERNELS], 1):  # names begin alike
        us = each["total_us"] / breakdown.steps
        rows.append((f"{place}. {each['name'][:40]}", us, "top kernels"))
    table = pandas.DataFrame([row for row in rows if row[1]], columns=["name", "ms", "what"])
    steps = f"{counted(breakdown.steps, 'step')} of {breakdown.step_us / 1e3:,.1f} ms on average"
    title = f"{breakdown.device_name}: {breakdown.utilization:.0%} of a step computing; {steps}"
    return plot(table.assign(ms=table["ms"] / 1e3), "name", "ms", "what", title=title)


@our_style
def draw_comparison(comparison: TraceComparison) -> Figure:
    """Draw the average step of two traces by class."""
    traces = comparison.before, comparison.after
    widths = pandas.DataFrame([each.class_us for each in traces], ["before", "after"]) / 1e3
    title = f"{comparison.before.source} -> {comparison.after.source}: {comparison.headline}"
    figure, [axes] = page(title, [], [AROUND_IN + 4 * LANE_IN])
    stack(axes, widths.rename(columns=words_of))
    axes.set_xlabel("ms of the average step")
    return figure


@our_style
def draw_timeline(
    source: str,
    lanes: dict[str, np.ndarray],
    start_ms: float | None = None,
    end_ms: float | None = None,
) -> Figure:
    """Draw when each lane of a trace was active; lines mark the steps.

    Args:
        source: What it is a trace of.
        lanes: (n, 2) starts and ends in ms, by what is active, or "rank 3: " and that; also of the
            "steps", which may be missing.
        start_ms: Where the picture begins: with the first step, else with the first activity.
        end_ms: Where it ends: with the second step, else with the last activity.
    """
    active = {name: spans for name, spans in lanes.items() if name != "steps"}
    steps = lanes.get("steps", np.empty((0, 2)))
    shown = steps[:2] if len(steps) else np.concatenate([*lanes.values()])
    start = shown.min() if start_ms is None else start_ms
    end = shown.max() if end_ms is None else end_ms
    figure, [axes] = page(source, [], [AROUND_IN + LANE_IN * len(active)])
    draw_lanes(axes, active, start, end)
    axes.vlines(steps[:, 0], -1, len(active), INK, linewidth=0.8)
    axes.set_xlabel("ms")
    return figure
