"""The figure of `lk.improve`: a bar of samples/s for each step that was kept."""

from __future__ import annotations

from matplotlib.figure import Figure

from labkit.results.run import Run
from labkit.tuning.result import Ladder
from labkit.view.primitives import Bar, hbars, rows_in
from labkit.view.run_header import delays_of, several_header
from labkit.view.style import ALARM, COMPUTE, drawable, our_style, page

NAME_CHARACTERS = 36
TOP_IN = 2.3
BOTTOM_IN = 0.1


@our_style
def draw_ladder(ladder: Ladder) -> Figure:
    """Draw the steps that were kept, each with its gain over the one before."""
    title = "no steps yet"
    if ladder.kept:
        title = "samples/s, step by step"
    bars: list[Bar] = []
    start_rate = before_rate = None
    for name, run in ladder.runs.items():
        if run.throughput is None:
            bars.append(Bar(drawable(name, NAME_CHARACTERS), None, _why_none(run), ink=ALARM))
            continue
        gain = run.throughput / before_rate if before_rate else None
        start_rate = start_rate or run.throughput
        before_rate = run.throughput
        total = run.throughput / start_rate
        if gain is not None:
            title = f"{name}: {total:.1f}x the throughput of the first step"
        bars.append(Bar(drawable(name, NAME_CHARACTERS), total, _said(run, gain), COMPUTE))
    runs = ladder.runs.values()
    header = several_header(title, [delays_of(runs)], runs)
    figure, (axes,) = page(header, [(0.08, rows_in(len(bars)))], TOP_IN, BOTTOM_IN)
    hbars(axes, bars)
    return figure


def _why_none(run: Run) -> str:
    """Say why a run has no throughput."""
    return f"{run.outcome}: {run.error or 'too few steps for numbers'}"


def _said(run: Run, gain: float | None) -> str:
    """Return the numbers of a run."""
    text = f"{run.throughput:,.0f}, busy {run.busy_text}"
    if gain is not None:
        text += f", {gain:.2f}x"
    return f"{text}; noisy" if run.noisy else text
