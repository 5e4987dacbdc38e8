"""What most figures are made of: bars, lines and stacked bars, each on an axes of a `page`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.view import style
from labkit.view.style import BEFORE, CHARACTER_IN, INSIDE, LINES, RC, WIDTH_IN, drawable

ROW_IN = 0.34  # a row of bars
THIN_IN = 0.25  # one of more than `MANY`
MANY = 10
BAR_HEIGHT = 0.62  # of a row
NAME = 48  # characters of a row's name, at most
GAP_PT = 5  # between a bar and its text
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue; white ink is a hole on a dark page


@dataclass
class Bar:
    """A row of `hbars`: a bar from 0 to `value`, with `text` behind it."""

    name: str
    value: float | None  # None draws no bar: the text says why
    text: str = ""
    colour: str = LINES[0]
    before: float | None = None  # the same row of an earlier run
    ink: str = "black"  # of the text


def rows_in(count: int) -> float:
    """Return the height in inches of `count` rows of bars."""
    return 0.1 + (ROW_IN if count <= MANY else THIN_IN) * count


def hbars(axes: Axes, bars: Sequence[Bar], xlabel: str = "") -> None:
    """Draw a bar per row, from top to bottom. Without an `xlabel` there is no axis below them."""
    ends = []
    for row, bar in enumerate(bars):
        value = bar.value or 0.0
        axes.barh(row, value, BAR_HEIGHT, color=bar.colour, alpha=0.85, linewidth=0)
        if bar.before is not None:
            axes.plot([bar.before] * 2, [row - 0.4, row + 0.4], color=BEFORE, linewidth=2)
        end = max(value, bar.before or 0.0)
        ends.append((end, bar.text))
        beside(axes, end, row, bar.text, bar.ink)
    name_rows(axes, [bar.name for bar in bars])
    fit(axes, ends)
    axes.set_xlabel(xlabel)
    if not xlabel:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)


def stack(
    axes: Axes,
    rows: Sequence[tuple[str, Mapping[str, float], str]],
    parts: Mapping[str, tuple[str, str]],
    xlabel: str = "",
    inside: Callable[[float], str] | None = None,
) -> None:
    """Draw a bar of parts per row: (name, {part: value}, the text behind it), from top to bottom.

    `parts` are {part: (name in the legend, colour)}, from left to right. `inside` writes a part's
    value into it.
    """
    ends = []
    for row, (_, values, text) in enumerate(rows):
        left = 0.0
        for part, (_, colour) in parts.items():
            width = values.get(part) or 0.0
            axes.barh(row, width, BAR_HEIGHT, left=left, color=colour, linewidth=0)
            if inside is not None:
                ink = "white" if np.dot(to_rgb(colour), LUMINANCE) < 0.3 else INSIDE
                middle = left + width / 2
                axes.text(middle, row, inside(width), color=ink, ha="center", va="center")
            left += width
        ends.append((left, text))
        beside(axes, left, row, text)
    name_rows(axes, [name for name, _, _ in rows])
    fit(axes, ends)
    axes.set_xlabel(xlabel)
    style.legend_above(axes, [Patch(color=colour, label=name) for name, colour in parts.values()])


@dataclass
class Series:
    """A line of `lines`; NaN is a gap."""

    name: str  # "" has no entry in the legend
    x: Sequence[float]
    y: np.ndarray
    colour: str
    dash: str  # "" connects no points
    marker: str


def lines(
    axes: Axes,
    series: Sequence[Series],
    ylabel: str,
    log: str = "",
    say: Callable[[float], str] | None = None,
) -> None:
    """Draw several series against an x, with a legend above the axes where they have names.

    `log` names the logarithmic axes ("", "x", "y", "xy"); `say` writes over the points.
    """
    for line in series:
        axes.plot(
            line.x,
            line.y,
            label=drawable(line.name) or None,
            color=line.colour,
            linestyle=line.dash or "none",
            marker=line.marker,
            markersize=5,
            zorder=2,
        )
        if say is not None:
            _say_values(axes, line, say)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
        low, high = axes.get_ylim()
        if say is not None:
            axes.set_ylim(low / 1.2, high * 1.4)
    else:
        highest = np.nanmax([0.0, *(value for line in series for value in line.y)])
        axes.set_ylim(0, (1.15 if say else 1.05) * highest or 1)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel(ylabel)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        style.legend_above(axes, handles, style.legend_columns(labels))


def _say_values(axes: Axes, line: Series, say: Callable[[float], str]) -> None:
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
    for x, y in zip(line.x, line.y, strict=True):
        if not np.isnan(y):
            axes.annotate(
                say(y), (x, y), (0, 6), textcoords="offset points", ha="center", bbox=paper
            )


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, 2 ... of an axes, from top to bottom."""
    shown = ["\n".join(drawable(line, NAME) for line in name.split("\n")) for name in names]
    axes.set_yticks(range(len(names)), shown, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def beside(axes: Axes, x: float, y: float, text: str, colour: str = "black") -> None:
    """Write `text` to the right of (x, y)."""
    halo = withStroke(linewidth=3, foreground=axes.get_facecolor())  # over lines that cross it
    axes.annotate(
        drawable(text, 105),
        (x, y),
        (GAP_PT, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        annotation_clip=False,
        path_effects=[halo],
        parse_math=False,
    )


def fit(axes: Axes, ends: Iterable[tuple[float, str]]) -> None:
    """Set the x axis, from 0, so that each text has room behind the x where it begins."""
    wide = axes.get_position().width * WIDTH_IN
    most = 0.0
    for x, text in ends:
        needed = len(text) * CHARACTER_IN * RC["font.size"] + GAP_PT / 72
        most = max(most, x * wide / (wide - min(needed, 0.75 * wide)))
    axes.set_xlim(0, 1.02 * most or 1)


def log_ticks(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten, a short one at 2 and 5 of them: plain numbers."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
