"""The same run in several formats: loss curves over each other, speed and memory beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.analysis.losses import Losses, name_of
from labkit.show.run_header import several_header
from labkit.show.style import LINES, drawable, legend_above, our_style, page

SMOOTH = 5  # steps: single batches differ more than the formats do
DASHES = ("-", "--", ":", "-.")


@our_style
def draw(losses: Losses) -> Figure:
    """Draw the loss of each run, smoothed over a few steps, then samples/s and peak memory."""
    runs = losses.runs
    title = "the same run, the same batches, in " + ", ".join(map(name_of, runs))
    word = "all within" if losses.survived else "NOT all within"
    text = f"mean losses: {word} {losses.tolerance:.0%} of {name_of(losses.base)}'s"
    rows = 0.08 + 0.3 * len(runs)
    figure, (curves, speed, memory) = page(
        several_header(title, [text], runs), [(0.36, 1.7), (0.66, rows), (0.6, rows)]
    )
    _draw_curves(curves, losses)
    _draw_bars(speed, runs, [run.throughput for run in runs], "samples/s", "{:,.0f}")
    _draw_bars(memory, runs, [run.peak_memory_gib for run in runs], "peak memory, GiB", "{:.2f}")
    return figure


def _draw_curves(axes: Any, losses: Losses) -> None:
    handles = []
    for i, run in enumerate(losses.runs):
        style = {"color": LINES[i], "ls": DASHES[i % len(DASHES)], "lw": 1.8}
        curve = losses.curve(run)
        width = min(SMOOTH, len(curve))
        smooth = np.convolve(curve, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(len(smooth)) + width // 2, smooth, **style)
        handles.append(Line2D([], [], label=name_of(run), **style))
    axes.set_ylabel(f"loss, mean of {SMOOTH} steps")
    axes.set_xlabel("step")
    legend_above(axes, handles)


def _draw_bars(axes: Any, runs: list[Any], values: list[Any], label: str, shown: str) -> None:
    known = [value or 0 for value in values]
    for row, value in enumerate(known):
        axes.barh(row, value, height=0.62, color=LINES[row % len(LINES)], alpha=0.85)
        text = shown.format(value) if value else "unknown"
        axes.annotate(text, (value, row), (5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(runs)), [drawable(name_of(run), 24) for run in runs])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlim(0, 1.2 * max([*known, 1e-9]))
    axes.set_xlabel(label)
