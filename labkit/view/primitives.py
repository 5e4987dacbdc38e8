"""What most figures are made of: bars, stacked bars and lanes, each on an axes of a `page`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from labkit.view.style import (
    BEFORE,
    CHARACTER_IN,
    INSIDE,
    TEXT_SIZE,
    WIDTH_IN,
    drawable,
)

ROW_IN = 0.34  # a row of bars
THIN_IN = 0.25  # a row where there are more than `MANY`
MANY = 10
BAR_HEIGHT = 0.62  # of a row
NAME_LENGTH = 48  # characters of a row's name, at most
TEXT_LENGTH = 105  # of what stands after a bar
GAP_PT = 5  # between a bar and its text
LABELLED = 0.07  # of the longest row: a part at least so wide has its number inside
LANE_GAP = 0.3  # between two lanes, of a lane's usual height
SPARSE = 0.01  # of the picture: of what is active for less, short intervals are to be seen, too
EDGE_PT = 0.4  # so much is drawn around each of these
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue; white ink is a hole on a dark page
DARK = 0.3


@dataclass
class Bar:
    """A row of `hbars`: a bar from 0 to `value`, with `text` after it."""

    name: str
    value: float
    text: str
    colour: str
    before: float | None = None  # the same row of an earlier run


@dataclass
class Lane:
    """A row of `draw_lanes`: when something was active."""

    name: str
    spans: Sequence[tuple[str, np.ndarray]]  # colour, (n, 2) starts and ends
    height: float = 1.0


def rows_in(count: int) -> float:
    """Return the height in inches of `count` rows of bars."""
    return 0.1 + (ROW_IN if count <= MANY else THIN_IN) * count


def hbars(axes: Axes, bars: Sequence[Bar], xlabel: str = "") -> None:
    """Draw a bar per row, from top to bottom. Without an `xlabel` there is no axis below them."""
    ends = []
    for row, bar in enumerate(bars):
        axes.barh(row, bar.value, BAR_HEIGHT, color=bar.colour, alpha=0.85, linewidth=0)
        if bar.before is not None:
            axes.plot([bar.before] * 2, [row - 0.4, row + 0.4], color=BEFORE, linewidth=2)
        end = max(bar.value, bar.before or 0.0)
        ends.append((end, bar.text))
        write_beside(axes, end, row, bar.text)
    name_rows(axes, [bar.name for bar in bars])
    fit(axes, ends)
    axes.set_xlabel(xlabel)
    if not xlabel:
        hide_xaxis(axes)


def stack(
    axes: Axes,
    rows: Mapping[str, Mapping[str, float]],
    parts: Mapping[str, tuple[str, str]],
    write: Callable[[float], str],
    unit: str = "",
) -> None:
    """Draw the parts of each row side by side, rows from top to bottom.

    Args:
        axes: Where to draw.
        rows: {name: {part: value}}.
        parts: {part: (name in the legend, colour)}, from left to right.
        write: Writes a value, into the parts that are wide enough.
        unit: Of the sum written after each row; "" leaves the sum out.
    """
    widths = np.array([[values.get(part, 0.0) for part in parts] for values in rows.values()])
    sums = widths.sum(axis=1)
    lefts = widths.cumsum(axis=1) - widths
    least = LABELLED * sums.max()
    for number, (_, colour) in enumerate(parts.values()):
        own = widths[:, number]
        look = {"left": lefts[:, number], "color": colour, "linewidth": 0}
        bars = axes.barh(range(len(rows)), own, BAR_HEIGHT, **look)
        ink = "white" if np.dot(to_rgb(colour), LUMINANCE) < DARK else INSIDE
        written = [write(width) if width >= least else "" for width in own]
        axes.bar_label(bars, written, label_type="center", color=ink)
    name_rows(axes, list(rows))
    ends = [(total, f"{write(total)}{unit}" if unit else "") for total in sums]
    for row, (total, text) in enumerate(ends):
        write_beside(axes, total, row, text)
    fit(axes, ends)


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
    shown = ["\n".join(drawable(line, NAME_LENGTH) for line in name.split("\n")) for name in names]
    axes.set_yticks(range(len(names)), shown, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def hide_xaxis(axes: Axes) -> None:
    """Draw no axis below bars that carry their numbers."""
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def write_beside(axes: Axes, end: float, row: float, text: str) -> None:
    """Write `text` after the end of a row's bar."""
    halo = withStroke(linewidth=3, foreground=axes.get_facecolor())  # over lines that cross it
    axes.annotate(
        drawable(text, TEXT_LENGTH),
        (end, row),
        (GAP_PT, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
        path_effects=[halo],
        parse_math=False,
    )


def fit(axes: Axes, ends: Iterable[tuple[float, str]]) -> None:
    """Set the x axis, from 0, so that each text has room after the end where it begins."""
    wide = axes.get_position().width * WIDTH_IN
    most = 0.0
    for end, text in ends:
        needed = len(text) * CHARACTER_IN * TEXT_SIZE + GAP_PT / 72
        most = max(most, end * wide / (wide - min(needed, 0.75 * wide)))
    axes.set_xlim(0, 1.02 * most or 1)
