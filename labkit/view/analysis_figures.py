"""The figures of `lk.trace`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas
from matplotlib.figure import Figure

from labkit.text import counted
from labkit.traces.breakdown import Breakdown, TraceComparison, words_of
from labkit.traces.public import PublicTrace
from labkit.view.primitives import Lane, draw_lanes
from labkit.view.rows_figure import plot
from labkit.view.style import (
    BLUE,
    BOLD,
    COMPUTE,
    COPY,
    INK,
    SKY,
    VERMILION,
    WAIT,
    our_style,
    page,
)

COLOURS = {  # of the lanes: the kit's where it has one
    "CPU operators": SKY,
    "DataLoader": WAIT,
    "CUDA calls": VERMILION,
    "kernels": COMPUTE,
    "collectives": BLUE,
    "copies": COPY,
}
LANE_IN = 0.26  # inches that a lane is high
AROUND_IN = 0.4
MOST_KERNELS = 6


def draw_trace(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    parts = {
        "time of a step": {words_of(name): us for name, us in breakdown.class_us.items()},
        "device idle": {f"idle: {words_of(name)}": us for name, us in breakdown.idle.items()},
        "top kernels": {
            f"{place}. {_short(each.name)}": each.total_us / breakdown.steps
            for place, each in enumerate(breakdown.top_kernels[:MOST_KERNELS], 1)
        },
    }
    rows = [(name, us, what) for what, each in parts.items() for name, us in each.items() if us]
    device = breakdown.device_name or breakdown.device_kind.upper()
    steps = f"{counted(breakdown.steps, 'step')} of {breakdown.step_us / 1e3:,.1f} ms on average"
    title = f"{device}: {breakdown.utilization:.0%} of a step computing; {steps}"
    return _bars(rows, title)


def draw_comparison(comparison: TraceComparison) -> Figure:
    """Draw the average step of two traces by class, and the kernels that changed most."""
    rows = []
    names = [words_of(each.name) for each in comparison.classes]
    names += [f"{place}. {_short(each.name)}" for place, each in enumerate(comparison.kernels, 1)]
    for name, each in zip(names, comparison.classes + comparison.kernels, strict=True):
        rows += [(name, each.before_us, "before"), (name, each.after_us, "after")]
    title = f"{comparison.before.source} -> {comparison.after.source}: {comparison.headline}"
    return _bars([row for row in rows if row[1]], title)


def _bars(rows: list[tuple[str, float, str]], title: str) -> Figure:
    """Draw the µs of each (name, µs, colour's name) as ms."""
    table = pandas.DataFrame(rows, columns=["name", "ms", "what"])
    return plot(table.assign(ms=table["ms"] / 1e3), "name", "ms", "what", title=title)


@our_style
def draw_timeline(
    source: str,
    lanes: Mapping[str, np.ndarray],
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
    active = {label: spans for label, spans in lanes.items() if label != "steps"}
    steps = lanes.get("steps", np.empty((0, 2)))
    shown = steps[:2] if len(steps) else np.concatenate([*active.values()])
    start = float(shown.min()) if start_ms is None else start_ms
    end = float(shown.max()) if end_ms is None else end_ms
    rows = []
    for label, spans in active.items():
        kind = label.split(": ")[-1]
        if np.diff(spans.clip(start, end)).any() or kind == "kernels":  # no kernel says something
            rows.append(Lane(label, [(COLOURS[kind], spans)]))
    figure, [axes] = page([(source, BOLD)], [AROUND_IN + LANE_IN * len(rows)])
    draw_lanes(axes, rows[::-1], start, end)
    look = {"color": INK, "linewidth": 0.8}
    axes.vlines(steps[:, 0], 0, 1, transform=axes.get_xaxis_transform(), **look)
    axes.set(xlim=(start, end), xlabel="ms")
    return figure


def draw_reference(known: PublicTrace) -> Figure:
    """Draw the reference numbers of a trace that could not be read: what each rank's time was."""
    rows = []
    for rank, found in known.numbers.items():
        busy = found["kernel_busy"] or 0.0
        exposed = found.get("exposed_comm") or 0.0
        spent = {"communication": exposed, "no kernel": 1 - busy, "kernel": busy - exposed}
        for part, share in spent.items():
            rows.append({"rank": rank, "part": part, "share of the traced time, %": 100 * share})
    title = f"{known.mark}: {known.hardware}"
    return plot(pandas.DataFrame(rows), "rank", "share of the traced time, %", "part", title=title)


def _short(name: str) -> str:
    """Cut a demangled C++ name to what tells kernels apart: no namespaces, no parameter list."""
    name = name.removeprefix("void ").split("(")[0] or name
    head, angle, arguments = name.partition("<")
    return (head.rsplit("::", 1)[-1] + angle + arguments)[:44]
