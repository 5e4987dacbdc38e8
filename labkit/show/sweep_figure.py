"""The figure of a sweep: throughput and utilization against the knob that was varied."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.results.run import Run
from labkit.results.sweep import Sweep
from labkit.show.primitives import Series, lines
from labkit.show.run_header import delays_of, several_header
from labkit.show.style import (
    ALARM,
    LEGEND_ROW_IN,
    LINES,
    drawable,
    legend_columns,
    literal,
    our_style,
    page,
    percent,
)

MARKERS = "osD^vPX"
VALUES_SHOWN = 10  # points of one line that still have room for their numbers

# One line of the figure: (its name, per position of the x axis a run, or None where there is none)
Line = tuple[str, list["Run | None"]]


@our_style
def draw_sweep(sweep: Sweep) -> Figure:
    """Draw throughput and utilization against the sweep's first knob, a line per other combination.

    The knob's values stand at equal distances, so that powers of two read well. Bars through the
    throughput are the run's own unevenness (`Run.spread`). A run without numbers is a gap, marked.
    """
    knob, *others = sweep.knobs
    found = lines_of(sweep)
    fixed = {n: v for n, v in sweep.pipeline.changed().items() if n not in sweep.knobs}
    texts = [_left_out(sweep), delays_of(sweep.runs, sweep.knobs), _text(fixed)]
    legend_in = 0.14
    if others:
        legend_in += LEGEND_ROW_IN * -(-len(found) // legend_columns([name for name, _ in found]))
    panels = [(legend_in, 1.8), (0.22, 1.3)]
    figure, (rates, busy) = page(several_header(message(sweep), texts, sweep.runs), panels)
    kinds = {run.machine.kind.upper() for run in sweep.runs if run.machine.kind != "unknown"}
    bound = ", at most" if any(run.utilization_is_upper_bound for run in sweep.runs) else ""
    device = kinds.pop() if len(kinds) == 1 else "device"
    _draw(rates, found, "throughput", "samples/s", "{:,.0f}".format)
    _draw(busy, [("", line) for _, line in found], "utilization", f"{device} busy{bound}", percent)
    busy.set_ylim(0, 1.22 if len(found) == 1 else 1.05)
    busy.set_yticks([0, 0.25, 0.5, 0.75, 1])
    busy.yaxis.set_major_formatter(PercentFormatter(1))
    values = [drawable(str(value), 16) for value in sweep.knobs[knob]]
    for axes in (rates, busy):
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.set_xticks(range(len(values)), values)
        axes.tick_params(labelbottom=axes is busy)
    for label in busy.get_xticklabels():
        literal(label)
    busy.set_xlabel(knob)
    return figure


def message(sweep: Sweep) -> str:
    """Return the title: the best setting, and what it brings over the slowest."""
    rates = [run.throughput for run in sweep.runs if run.throughput]
    if len(rates) < 2:
        return f"sweep of {', '.join(sweep.knobs)}"
    best = sweep.settings[sweep.runs.index(sweep.best)]
    gain = max(rates) / min(rates)
    return f"{_text(best)}: {gain:.1f}x the throughput of the slowest setting"


def lines_of(sweep: Sweep) -> list[Line]:
    """Sort the runs into lines: the first knob along the axis, the others as lines."""
    knob, *others = sweep.knobs
    values = sweep.knobs[knob]
    found: dict[str, list[Run | None]] = {}
    for setting, run in itertools.zip_longest(sweep.settings, sweep.runs):
        line = found.setdefault(_text({n: setting[n] for n in others}), [None] * len(values))
        line[values.index(setting[knob])] = run
    return list(found.items())


def _draw(axes: Axes, found: list[Line], name: str, ylabel: str, say: Any) -> None:
    """Draw one number of the runs, with the spread of the throughput, and crosses for gaps."""
    series = []
    for index, (label, line) in enumerate(found):
        values = [getattr(run, name) if run else None for run in line]
        values = np.array([np.nan if value is None else value for value in values], float)
        colour, style = LINES[index % len(LINES)], "-" if index < len(LINES) else "--"
        marker = MARKERS[index % len(MARKERS)]
        series.append(Series(label, range(len(line)), values, colour, style, marker))
        if name == "throughput":  # half the IQR to either side
            spreads = np.array([(run.spread or 0.0) if run else 0.0 for run in line])
            half = np.nan_to_num(values) * spreads / 2
            axes.errorbar(range(len(line)), values, half, fmt="none", ecolor=colour, capsize=3)
        for x, run in enumerate(line):
            if run is not None and np.isnan(values[x]):
                axes.plot(x, 0.03, "x", color=ALARM, markersize=7, mew=2, clip_on=False,
                          transform=axes.get_xaxis_transform())  # fmt: skip
    few = len(found) == 1 and len(found[0][1]) <= VALUES_SHOWN
    lines(axes, series, ylabel=ylabel, say=say if few else None)


def _text(knobs: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in knobs.items())


def _left_out(sweep: Sweep) -> str:
    """Say what was not run, and which runs have no numbers (the crosses): the first one's why."""
    missing = len(sweep.settings) - len(sweep.runs)
    notes = [f"{missing} not run"] if missing else []
    failed = [run for run in sweep.runs if run.throughput is None]
    if failed:
        setting = _text(sweep.settings[sweep.runs.index(failed[0])])
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        notes.append(f"× no numbers: {setting}{more}: {failed[0].error or failed[0].outcome}")
    return "; ".join(notes)
