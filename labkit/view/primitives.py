"""What most figures are made of: bars, stacked bars and lanes, each on an axes of a `page`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from labkit.view.style import BEFORE, INSIDE, drawable

ROW_IN = 0.3  # a row of bars
AROUND_IN = 0.3  # what stands around bars: their title
BAR_HEIGHT = 0.62  # of a row
NAME_LENGTH = 48  # characters of a row's name, at most
TEXT_LENGTH = 105  # of what stands after a bar
FOR_BARS = 0.55  # of the width: the texts have the rest
GAP_PT = 5  # between a bar and its text
LABELLED = 0.07  # of the longest row: a part at least so wide has its number inside
LANE_GAP = 0.3  # between two lanes, of a lane's usual height
SPARSE = 0.01  # of the picture: of what is active for less, short intervals are to be seen, too
EDGE_PT = 0.4  # so much is drawn around each of these


@dataclass
class Bar:
    """A row of `hbars`: a bar from 0 to `value`, with `text` after it."""

    name: str
    value: float
    text: str
    colour: str
    before: float = 0.0  # the same row of an earlier run


@dataclass
class Lane:
    """A row of `draw_lanes`: when something was active."""

    name: str
    spans: Sequence[tuple[str, np.ndarray]]  # colour, (n, 2) starts and ends
    height: float = 1.0


def hbars(axes: Axes, bars: Sequence[Bar]) -> None:
    """Draw a bar per row, from top to bottom, with its text; a line marks the run before."""
    for row, bar in enumerate(bars):
        axes.barh(row, bar.value, BAR_HEIGHT, color=bar.colour, alpha=0.85, linewidth=0)
        if bar.before:
            axes.plot([bar.before] * 2, [row - 0.4, row + 0.4], color=BEFORE, linewidth=2)
        write_beside(axes, max(bar.value, bar.before), row, bar.text)
    name_rows(axes, [bar.name for bar in bars])
    axes.set_xticks([])  # the bars carry their numbers
    axes.spines["bottom"].set_visible(False)
    most = max((max(bar.value, bar.before) for bar in bars), default=0.0)
    axes.set_xlim(0, most / FOR_BARS or 1)


def stack(axes: Axes, rows: Mapping[str, Mapping[str, float]], parts: Mapping[str, str]) -> None:
    """Draw the parts of each row side by side, a wide one with its share; rows from top to bottom.

    Args:
        axes: Where to draw.
        rows: {name: {part: value}}.
        parts: {part: colour}, from left to right.
    """
    widths = pandas.DataFrame(rows).T[[*parts]]
    sums = widths.sum(axis=1)
    ends = widths.cumsum(axis=1)
    for part, colour in parts.items():
        own = widths[part]
        bars = axes.barh(range(len(own)), own, BAR_HEIGHT, ends[part] - own, color=colour)
        texts = [f"{share:.0%}" for share in own / sums]
        is_wide = own >= LABELLED * sums.max()
        axes.bar_label(bars, np.where(is_wide, texts, ""), label_type="center", color=INSIDE)
    name_rows(axes, list(rows))


def patches(named: Iterable[tuple[str, str]]) -> list[Patch]:
    """Return what a legend shows of some (name, colour)."""
    return [Patch(color=colour, label=name) for name, colour in named]


def draw_lanes(axes: Axes, lanes: Sequence[Lane], start: float, end: float) -> None:
    """Draw what of each lane lies between `start` and `end`, from bottom to top."""
    foot = 0.0
    middles = []
    for lane in lanes:
        for colour, spans in lane.spans:
            begin, stop = np.clip(spans[(spans[:, 1] > start) & (spans[:, 0] < end)], start, end).T
            widths = stop - begin
            edge = EDGE_PT if widths.sum() < SPARSE * (end - start) else 0.0
            drawn = list(zip(begin, widths, strict=True))
            axes.broken_barh(drawn, (foot, lane.height), color=colour, linewidth=edge)
        middles.append(foot + lane.height / 2)
        foot += lane.height + LANE_GAP
    axes.set_yticks(middles, [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(start, end), ylim=(-LANE_GAP / 2, foot - LANE_GAP / 2))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, 2 ... of an axes, from top to bottom."""
    axes.set_yticks(range(len(names)), [drawable(name, NAME_LENGTH) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def write_beside(axes: Axes, end: float, row: float, text: str) -> None:
    """Write `text` after the end of a row's bar."""
    axes.annotate(
        drawable(text, TEXT_LENGTH),
        (end, row),
        (GAP_PT, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
        path_effects=[withStroke(linewidth=3, foreground="white")],  # over lines that cross it
    )
