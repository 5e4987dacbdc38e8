"""The figure of a sweep: a metric and the utilization against the knob that was varied."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from labkit.results.run import Run
from labkit.show.run_header import several_header, stated_of
from labkit.show.style import (
    ALARM,
    LEGEND_ROW_IN,
    LINES,
    drawable,
    legend_above,
    legend_columns,
    literal,
    our_style,
    page,
    percent,
)

METRICS = {
    "throughput": "samples/s",
    "utilization": "device busy",
    "step_ms": "median step, ms",
    "wait_ms": "median wait for data, ms",
    "copy_ms": "median copy, ms",
    "compute_ms": "median compute, ms",
    "peak_memory_gib": "peak memory, GiB",
    "energy_j": "energy, J",
}
MARKERS = "osD^vPX"
VALUES_SHOWN = 10  # points of one line that still have room for their numbers

# One line of the figure: (its name, per position of the x axis a run, or None where there is none)
Line = tuple[str, list["Run | None"]]


@our_style
def draw_sweep(sweep: Any, metric: str = "throughput") -> Figure:
    """Draw `metric` and utilization against the sweep's first knob, a line per other combination.

    The knob's values stand at equal distances, so that powers of two read well. Bars through the
    throughput are the run's own unevenness (`Run.spread`). A run without numbers is a gap, marked.
    Raises ValueError for a metric that is no number of a Run.
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is not allowed: use {', '.join(METRICS)}.")
    knob, *others = sweep.knobs
    values = list(sweep.knobs[knob])
    lines = lines_of(sweep)
    metrics = list(dict.fromkeys([metric, "utilization"]))
    texts = [_left_out(sweep), stated_of(sweep.runs, sweep.knobs)]
    columns = legend_columns([label for label, _ in lines])
    legend_in = 0.12 + LEGEND_ROW_IN * -(-len(lines) // columns) if others else 0.14
    panels = [(legend_in, 1.8), (0.22, 1.3)][: len(metrics)]
    figure, axes = page(several_header(_title(sweep), texts, sweep.runs), panels)
    for each, name in zip(axes, metrics, strict=True):
        _draw_metric(each, name, lines, len(values), sweep.runs)
        each.tick_params(labelbottom=each is axes[-1])
    axes[-1].set_xticks(range(len(values)), [drawable(str(value), 16) for value in values])
    for label in axes[-1].get_xticklabels():
        literal(label)
    axes[-1].set_xlabel(knob)
    if others:
        handles = [Line2D([], [], label=label, **_style(i)) for i, (label, _) in enumerate(lines)]
        legend_above(axes[0], handles, columns)
    return figure


def lines_of(sweep: Any) -> list[Line]:
    """Sort the runs into lines: the first knob along the axis, the others as lines."""
    knob, *others = sweep.knobs
    lines: dict[tuple, list[Run | None]] = {}
    positions = range(len(sweep.knobs[knob]))
    products = itertools.product(positions, *(sweep.knobs[name] for name in others))
    for (position, *rest), run in itertools.zip_longest(products, sweep.runs):
        line = lines.setdefault(tuple(rest), [None] * len(positions))
        line[position] = run
    return [
        (", ".join(f"{name}={value!r}" for name, value in zip(others, rest, strict=True)), line)
        for rest, line in lines.items()
    ]


def _draw_metric(axes: Axes, name: str, lines: list[Line], count: int, runs: list[Run]) -> None:
    for index, (_, line) in enumerate(lines):
        _draw_line(axes, name, line, _style(index), numbers=len(lines) == 1)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_xticks(range(count))
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    if name == "utilization":
        kinds = {run.machine.kind.upper() for run in runs if run.machine.kind != "unknown"}
        axes.set_ylim(0, 1.22 if len(lines) == 1 else 1.05)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        bound = ", at most" if any(run.utilization_is_upper_bound for run in runs) else ""
        axes.set_ylabel(f"{kinds.pop() if len(kinds) == 1 else 'device'} busy{bound}")
    else:
        top = axes.dataLim.y1
        something = bool(np.isfinite(top) and top > 0)
        axes.set_ylim(0, top * 1.22 if something else 1)
        axes.set_ylabel(METRICS[name])
        if not something:
            axes.set_yticks([])


def _style(index: int) -> dict[str, Any]:
    return {
        "color": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": "-" if index < len(LINES) else "--",
        "linewidth": 1.4,
        "markersize": 5,
    }


def _draw_line(
    axes: Axes, name: str, line: list[Run | None], style: dict[str, Any], numbers: bool
) -> None:
    values = [np.nan if run is None else _value(run, name) for run in line]
    errors = None
    if name == "throughput":  # half the IQR to either side
        spreads = [run.spread or 0.0 if run else 0.0 for run in line]
        errors = np.nan_to_num(np.array(values)) * spreads / 2
    axes.errorbar(range(len(values)), values, yerr=errors, capsize=3, elinewidth=1, **style)
    for x, (run, value) in enumerate(zip(line, values, strict=True)):
        if run is not None and np.isnan(value):
            axes.plot(x, 0.03, "x", color=ALARM, markersize=7, mew=2, clip_on=False,
                      transform=axes.get_xaxis_transform())  # fmt: skip
        elif numbers and len(line) <= VALUES_SHOWN and not np.isnan(value):
            top = value + (errors[x] if errors is not None else 0)
            axes.annotate(
                _number(name, value), (x, top), (0, 5), textcoords="offset points", ha="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )  # fmt: skip


def _number(name: str, value: float) -> str:
    if name == "utilization":
        return percent(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _value(run: Run, name: str) -> float:
    value = getattr(run, name)
    return np.nan if value is None else float(value)


def _title(sweep: Any) -> str:
    fixed = {n: v for n, v in sweep.pipeline.changed().items() if n not in sweep.knobs}
    text = f"sweep of {', '.join(sweep.knobs)}"
    return text + (f" ({', '.join(f'{n}={v!r}' for n, v in fixed.items())})" if fixed else "")


def _left_out(sweep: Any) -> str:
    """Say what was not run, and which runs have no numbers (the crosses): the first one's why."""
    missing = math.prod(map(len, sweep.knobs.values())) - len(sweep.runs)
    notes = [f"{missing} not run"] if missing else []
    failed = [run for run in sweep.runs if run.throughput is None]
    if failed:
        settings = ", ".join(f"{n}={getattr(failed[0].asked, n)!r}" for n in sweep.knobs)
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        notes.append(f"× no numbers: {settings}{more}: {failed[0].error or failed[0].outcome}")
    return "; ".join(notes)
