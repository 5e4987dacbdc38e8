"""The figure of the learning-rate lesson: loss against samples seen, and where each run ended."""

from __future__ import annotations

import math
import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurement, Measurements
from labkit.show.style import ALARM, LINES, our_style, page

LEFT_IN = 2.4
ROW_IN = 0.27
ROOM = 1.55  # the axis goes on so far behind the worst loss: for the text there


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw the training loss against samples seen, and below it each case's held-out loss."""
    points = list(measured)
    title = "the same samples, other batches and learning rates (median of the seeds)"
    header = measured_header(measured, None, title=title)
    panels = [(0.1, 2.3), (0.62, 0.1 + ROW_IN * len(points))] if points else []
    figure, axes = page(header, panels, left_in=LEFT_IN)
    if points:
        styles = [_style(i, point) for i, point in enumerate(points)]
        _draw_curves(axes[0], points, styles)
        _draw_ends(axes[1], points, [style["color"] for style in styles])
    return figure


def _style(index: int, point: Measurement) -> dict:
    line = "--" if point.case["warmup"] else "-"
    return {"color": LINES[index % len(LINES)], "linestyle": line, "linewidth": 1.5}


def _draw_curves(axes: Axes, points: list[Measurement], styles: list[dict]) -> None:
    guess = math.log(10)  # the loss of a model that knows nothing of 10 classes
    for point, style in zip(points, styles, strict=True):
        loss = [math.nan if v is None else v for v in point.values["loss"]]
        axes.plot(point.values["samples"], loss, **style)
    axes.axhline(guess, color="#999999", linewidth=0.8, linestyle=":")
    axes.annotate(
        "guessing", (1, guess), (3, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center", fontsize=7.5, color="#777777",
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(top=12)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("training loss (colours as below)")
    axes.set_xlabel("samples seen (dashed: warm-up)")


def _draw_ends(axes: Axes, points: list[Measurement], colours: list[str]) -> None:
    worst = 0.0
    for row, (point, colour) in enumerate(zip(points, colours, strict=True)):
        losses = [loss for loss in point.values["held_out"] if loss is not None]
        middle = statistics.median(losses) if losses else math.nan
        shown = min(middle, 3.0) if losses else 3.0
        axes.barh(row, shown, height=0.66, color=colour, linewidth=0)
        axes.plot([min(loss, 3.0) for loss in losses], [row] * len(losses), "|", color="black")
        right = statistics.median(r or 0 for r in point.values["right"])
        text = f"{middle:.2f}, {right:.0%} right, {point.values['updates']} updates"
        colour = ALARM if not middle < math.log(10) else "black"
        end = max([shown, *(min(loss, 3.0) for loss in losses)])
        axes.annotate(text, (end, row), (6, 0), textcoords="offset points",
                      va="center", fontsize=8, color=colour)  # fmt: skip
        worst = max(worst, end)
    axes.set_yticks(range(len(points)), [point.of for point in points])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.5, -0.5)
    axes.set_xlim(0, ROOM * worst)
    axes.set_xlabel("held-out loss at the end (bar: median, marks: each seed; cut off at 3)")
