"""What most figures are made of: bars, lines and stacked bars, each on an axes of a `page`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.view import style
from labkit.view.style import BEFORE, CHARACTER_IN, INSIDE, LINES, RC, drawable

ROW_IN, THIN_IN, MANY = 0.34, 0.25, 10  # a row of bars, and where there are more than MANY
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
    spread: tuple[float, float] | None = None  # a line through its end, from low to high
    marks: Sequence[float] = ()  # ticks, such as single runs
    outline: float | None = None  # a frame up to what would be perfect
    before: float | None = None  # the same row of an earlier run
    hatch: str | None = None
    ink: str = "black"  # of the text


def rows_in(count: int) -> float:
    """Return the height in inches of `count` rows of bars."""
    return 0.1 + (ROW_IN if count <= MANY else THIN_IN) * count


def hbars(axes: Axes, bars: Sequence[Bar], xlabel: str = "") -> None:
    """Draw a bar per row, from top to bottom. Without an `xlabel` there is no axis below them."""
    ends = []
    for row, bar in enumerate(bars):
        look = {"height": 0.62, "linewidth": 0, "hatch": bar.hatch, "edgecolor": "white"}
        axes.barh(row, bar.value or 0, color=bar.colour, alpha=0.85, **look)
        if bar.outline is not None:
            frame = {"height": 0.62, "fill": False, "edgecolor": BEFORE, "linewidth": 0.9}
            axes.barh(row, bar.outline, **frame)
        if bar.spread is not None:
            axes.plot(bar.spread, [row, row], color="black", linewidth=1.2)
        axes.plot(bar.marks, [row] * len(bar.marks), "|", color="black")
        if bar.before is not None:
            axes.plot([bar.before] * 2, [row - 0.4, row + 0.4], color=BEFORE, linewidth=2)
        reach = [bar.value, bar.outline, bar.before, *(bar.spread or ()), *bar.marks]
        ends.append((max((x for x in reach if x is not None), default=0.0), bar.text))
        beside(axes, ends[-1][0], row, bar.text, bar.ink)
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
    predicted: Sequence[Mapping[str, float] | None] = (),
    inside: Callable[[float], str] | None = None,
) -> None:
    """Draw a bar of parts per row: (name, {part: value}, the text behind it), from top to bottom.

    `parts` are {part: (name in the legend, colour)}, from left to right. `predicted` is per row the
    same parts as they were predicted: a hatched bar above. `inside` writes a part's value into it.
    """
    ends = []
    for row, (_, values, text) in enumerate(rows):
        said = predicted[row] if predicted else None
        bars = [(row - 0.18, said, True)] if said else []
        for y, known, hatched in [*bars, (row + 0.18 if said else row, values, False)]:
            left, look = 0.0, {"height": 0.34 if said else 0.62, "linewidth": 0}
            look |= {"edgecolor": "white", "hatch": "///", "alpha": 0.55} if hatched else {}
            for part, (_, colour) in parts.items():
                wide = known.get(part) or 0.0
                axes.barh(y, wide, left=left, color=colour, **look)
                if inside is not None and not hatched:
                    ink = "white" if np.dot(to_rgb(colour), LUMINANCE) < 0.3 else INSIDE
                    middle = {"ha": "center", "va": "center"}
                    axes.text(left + wide / 2, y, inside(wide), color=ink, **middle)
                left += wide
            ends.append((left, f"predicted {number(left)}" if hatched else text))
            beside(axes, left, y, ends[-1][1])
    name_rows(axes, [name for name, _, _ in rows])
    fit(axes, ends)
    axes.set_xlabel(xlabel)
    style.legend_above(axes, [Patch(color=colour, label=name) for name, colour in parts.values()])


@dataclass
class Series:
    """A line of `lines`. Dashed is for what was predicted, `before` for an earlier run, in grey."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = LINES[0]
    style: str = "-"
    marker: str = "o"
    before: bool = False

    @property
    def look(self) -> dict[str, Any]:
        """Return how it is drawn, here and in the legend."""
        if self.before:
            return {"color": BEFORE, "linewidth": 1, "marker": self.marker, "markersize": 3}
        return {"color": self.colour, "linestyle": self.style or "none", "linewidth": 1.5,
                "marker": self.marker, "markersize": 5}  # fmt: skip


def lines(
    axes: Axes,
    series: Iterable[Series],
    xlabel: str = "",
    ylabel: str = "",
    *,
    log: str = "",
    xticks: Mapping[float, str] | None = None,
    say: Callable[[float], str] | None = None,
    more: Sequence[Line2D] = (),
) -> None:
    """Draw several series against an x, with a legend above the axes where they have names.

    A NaN is a gap. `log` names the logarithmic axes ("", "x", "y", "xy"), `xticks` all {x: label};
    `say` writes over the points of plain lines; `more` are entries of the legend.
    """
    drawn = list(series)
    for line in drawn:
        axes.plot(line.x, line.y, zorder=1 if line.before else 2, **line.look)
        said = say is not None and not line.before and line.style in ("-", "")
        for x, y in zip(line.x, line.y, strict=True) if said else ():
            axes.annotate(
                say(y) if y == y else "", (x, y), (0, 6), textcoords="offset points", ha="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )  # fmt: skip
    if "x" in log:
        axes.set_xscale("log", base=2 if xticks else 10)
        if not xticks:
            log_ticks(axes.xaxis)
    if "y" in log:
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
        if say is not None:
            low, high = axes.get_ylim()
            axes.set_ylim(low / 1.2, high * 1.4)
    else:
        known = [y for line in drawn for y in line.y if y is not None and not math.isnan(y)]
        axes.set_ylim(0, (1.15 if say else 1.05) * max(known, default=0) or 1)
    if xticks is not None:
        axes.set_xticks(list(xticks), list(xticks.values()))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    looks = {line.name: line.look for line in drawn if line.name}
    if looks or more:
        legend(axes, looks, more)


def legend(axes: Axes, looks: Mapping[str, dict[str, Any]], more: Sequence[Line2D] = ()) -> None:
    """Put a legend above the axes: {name: how its line or marker is drawn}, and `more` entries."""
    handles = [Line2D([], [], label=drawable(name), **look) for name, look in looks.items()]
    handles += more
    columns = style.legend_columns([handle.get_label() for handle in handles])
    style.legend_above(axes, handles, columns)


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
        drawable(text, 105), (x, y), (GAP_PT, 0), textcoords="offset points", va="center",
        color=colour, annotation_clip=False, path_effects=[halo], parse_math=False,
    )  # fmt: skip


def fit(axes: Axes, ends: Iterable[tuple[float, str]]) -> None:
    """Set the x axis, from 0, so that each text has room behind the x where it begins."""
    wide = axes.get_position().width * axes.figure.get_figwidth()
    most = 0.0
    for x, text in ends:
        needed = len(text) * CHARACTER_IN * RC["font.size"] + GAP_PT / 72
        most = max(most, x * wide / (wide - min(needed, 0.75 * wide)))
    axes.set_xlim(0, 1.02 * most or 1)


def number(value: float) -> str:
    """Write a number with three digits or so, and never as a power of ten."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def log_ticks(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten, a short one at 2 and 5 of them: plain numbers."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def size_text(size_bytes: float) -> str:
    """Write a number of bytes in the unit that suits it: 16 KiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:g} B"


def flops_text(tflop_per_s: float) -> str:
    """Write a rate of arithmetic in the unit that suits it."""
    small = tflop_per_s < 1
    return f"{number(tflop_per_s * 1e3)} GFLOP/s" if small else f"{number(tflop_per_s)} TFLOP/s"
