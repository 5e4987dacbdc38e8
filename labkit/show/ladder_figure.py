"""The figure of a ladder: a bar of samples/s for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.run_header import several_header, stated_of
from labkit.show.style import ALARM, COMPUTE, OTHER, drawable, literal, our_style, page

if TYPE_CHECKING:
    from labkit.show.ladder import Ladder, Rung

LEFT_IN = 2.3  # for the names of the steps
ROOM = 2.6  # the axis is so many times the longest bar: the rest is for the text behind it


@our_style
def draw_ladder(ladder: Ladder) -> Figure:
    """Draw a bar of samples/s per step, grey where the step gained nothing beyond the noise."""
    rungs = ladder.rungs
    runs = [rung.run for rung in rungs]
    if not rungs:
        return page([("The ladder has no steps yet.", {})], [])[0]
    title = "samples/s, step by step"
    places = {(run.recorded, run.machine.name) for run in runs if run.throughput}
    texts = ["each machine's bars have a scale of their own" if len(places) > 1 else ""]
    header = several_header(title, [*texts, stated_of(runs)], runs)
    panels = [(0.08, 0.1 + 0.3 * len(rungs))]
    figure, (axes,) = page(header, panels, left_in=LEFT_IN, bottom_in=0.1)
    for row, rung in enumerate(rungs):
        _draw_rung(axes, row, rung)
    axes.set_yticks(range(len(rungs)), [drawable(rung.name, 36) for rung in rungs])
    for label in axes.get_yticklabels():
        literal(label)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rungs) - 0.5, -0.5)
    axes.set_xlim(0, ROOM * max(map(_length, rungs)) or 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def _draw_rung(axes: Axes, row: int, rung: Rung) -> None:
    run = rung.run
    if run.throughput is None:
        text, colour = rung.verdict, ALARM
    else:
        axes.barh(
            row, _length(rung), height=0.68, color=OTHER if rung.null else COMPUTE,
            hatch="///" if run.recorded else None, edgecolor="white", linewidth=0,
        )  # fmt: skip
        gain = "" if rung.gain is None else f", {rung.gain:.2f}x"
        text = f"{run.throughput:,.0f}, busy {run.busy_text}{gain}"
        text, colour = "; ".join(filter(None, [text, rung.verdict])), "black"
    axes.annotate(
        drawable(text, 105 if run.throughput is None else 82), (_length(rung), row), (5, 0),
        textcoords="offset points", va="center", fontsize=8, color=colour, annotation_clip=False,
    ).set_parse_math(False)  # fmt: skip


def _length(rung: Rung) -> float:
    """The bar's length: throughput in units of the first step's on the same machine."""
    return (rung.in_all or 1.0) if rung.run.throughput else 0.0
