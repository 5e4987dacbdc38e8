"""The figure of scaling: how far each run of ranks came, in front of what perfect would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.show.run_header import several_header
from labkit.show.style import ALARM, COMPUTE, OTHER, drawable, literal, our_style, page

if TYPE_CHECKING:
    from labkit.show.scaling import Scaling, ScalingRow

LEFT_IN = 2.3  # for the names of the rows
ROOM = 2.0  # the axis is so many times the longest bar: the rest is for the text behind it


@our_style
def draw_scaling(scaling: Scaling) -> Figure:
    """Draw a bar per row, filled as far as the ranks came, outlined as far as perfect would be."""
    rows = scaling.rows
    runs = [scaling.one, *(row.ranks for row in rows)]
    title = "samples/s over those of one process; the outline is perfect scaling"
    header = several_header(title, [], runs)
    figure, (axes,) = page(header, [(0.08, 0.1 + 0.3 * (len(rows) + 1))], LEFT_IN, 0.1)
    rate = scaling.one.throughput or 0.0
    axes.barh(0, 1, height=0.68, color=OTHER)
    _say(axes, 0, 1, f"{rate:,.0f} samples/s" if rate else "no numbers")
    longest = max([1, *(_draw_row(axes, i, row) for i, row in enumerate(rows, 1))])
    names = ["one process", *(row.name for row in rows)]
    axes.set_yticks(range(len(names)), [drawable(name, 36) for name in names])
    for label in axes.get_yticklabels():
        literal(label)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, ROOM * longest or 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def _draw_row(axes: Axes, place: int, row: ScalingRow) -> float:
    """Draw one row, in units of its own one process; return how long it is."""
    rate, one = row.ranks.throughput, row.one.throughput
    if rate is None or one is None:
        _say(axes, place, 0.0, row.note or "too few steps for numbers", ALARM)
        return 0.0
    speedup, ideal = rate / one, len(row.ranks)
    hatch = "///" if row.ranks.recorded else None
    axes.barh(
        place, speedup, height=0.68, color=COMPUTE, hatch=hatch, edgecolor="white", linewidth=0
    )
    axes.barh(place, ideal, height=0.68, fill=False, edgecolor="#555555", linewidth=0.9)
    text = f"{rate:,.0f} samples/s, {speedup:.2f}x, efficiency {row.efficiency:.0%}"
    _say(axes, place, max(speedup, ideal), "; ".join(filter(None, [text, row.note])))
    return max(speedup, ideal)


def _say(axes: Axes, place: int, x: float, text: str, colour: str = "black") -> None:
    axes.annotate(
        drawable(text, 80), (x, place), (5, 0), textcoords="offset points", va="center",
        fontsize=8, color=colour, annotation_clip=False,
    ).set_parse_math(False)  # fmt: skip
