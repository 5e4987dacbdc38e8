"""`lk.plot`: measured rows as a figure, lines over numbers and bars or points beside names."""

from __future__ import annotations

import math

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from labkit.bench.grid import NOISY
from labkit.results.measurements import short
from labkit.view.primitives import name_rows, write_beside
from labkit.view.series import (
    LONGEST_NAME,
    Rows,
    frame_of,
    origins_of,
    tidied,
    with_unit,
)
from labkit.view.style import (
    BEFORE,
    BOLD,
    GREY,
    Picture,
    drawable,
    legend_above,
    our_style,
    page,
)

LOGS = (None, "", "x", "y", "xy")
HOLLOW = f"hollow: noisy, spread above {NOISY:.0%} of the median"
MARKERS = ("s", "D", "^", "v", "P", "X")  # of what is beside; the user's own points are "o"
LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_TICKS = 10
LINES_IN = 3.3  # height of axes with lines
BAR_IN = 0.2
GRID = {"color": "#E6E6E6", "linewidth": 0.8}


@our_style
def plot(
    rows: Rows,
    x: str,
    y: str,
    by: str | None = None,
    *,
    beside: Rows | None = None,
    title: str = "",
    log: str | None = None,
) -> Picture:
    """Draw column `y` over column `x`: lines where x is a number, bars where it is text.

    Args:
        rows: What `lk.measure` or `lk.published` returned, or any DataFrame. A row with an `error`
            or without a `y` is a gap, named above the axes; one that is `noisy` is hollow.
        x: The column along the axis; powers of two are drawn at equal distances.
        y: The column to show; "ms" has the interquartile range as error bars.
        by: A column: each of its values has a colour.
        beside: Another such table, dashed: published numbers, or a record of another machine.
        title: Above the figure.
        log: The logarithmic axes: "x", "y", "xy", or "" for none. None decides for x alone. Beside
            names a logarithmic y has points instead of bars.

    Rows with the same `x` are points without a line.
    Raises ValueError on a column that is not there.
    """
    if log not in LOGS:
        raise ValueError(f"log={log!r} is not allowed: use 'x', 'y', 'xy', '' or None.")
    drawn = tidied(rows, x, y, by, beside)
    notes = [_origin_of(rows, x), *_notes_of(drawn, y)]
    header = [(title, BOLD), *((note, GREY) for note in notes)]
    figure, [axes] = page(header, [height_in(drawn)])
    draw_rows(axes, drawn, x, y, log)
    legend_above(axes)
    return figure


def _origin_of(table: Rows, x: str) -> str:
    """Say who measured the rows, and on which cards where the axes do not; "" of one's own."""
    frame = frame_of(table)
    origin = ", ".join(filter(None, dict.fromkeys(origins_of(table))))
    cards = frame["card"].unique() if origin and "card" in frame and x != "card" else ()
    return ": ".join(filter(None, [", ".join(cards), origin]))


def _notes_of(drawn: pandas.DataFrame, y: str) -> list[str]:
    """Return what stands above the axes: what is missing, "float32: out of memory (512)" ..."""
    notes = []
    missing = drawn[drawn["y"].isna()]
    for _, rows in missing.groupby(["label", "why"], sort=False):
        first = rows.iloc[0]
        why = drawable(first["why"] or f"no {y}", LONGEST_NAME)
        label = f"{first['label']}: " if first["label"] else ""
        notes.append(f"{label}{why} ({', '.join(rows['name'])})")
    if drawn["spread"].any():
        notes.append("error bars: half the interquartile range up and down")
    if drawn["noisy"].any():
        notes.append(HOLLOW)
    return notes


def is_lines(drawn: pandas.DataFrame) -> bool:
    """Return whether lines are drawn over numbers, rather than bars beside names."""
    return bool(drawn["x"].notna().all())


def height_in(drawn: pandas.DataFrame) -> float:
    """Return the height of axes with lines, or with a bar for each row, inches."""
    return LINES_IN if is_lines(drawn) else BAR_IN * len(drawn) + 0.9


def draw_rows(axes: Axes, drawn: pandas.DataFrame, x: str, y: str, log: str | None) -> None:
    """Draw `tidied` rows: lines over numbers, or bars beside names."""
    axes.set_axisbelow(True)
    is_log = "y" in (log or "") and bool((drawn["y"] > 0).any())
    if not is_lines(drawn):
        _draw_bars(axes, drawn, is_log)
        axes.set_xlabel(with_unit(y))
        axes.grid(axis="both" if is_log else "x", **GRID)
        return
    for number, (_, rows) in enumerate(drawn.groupby(["is_beside", "label"], sort=False)):
        rows = rows.sort_values("x", kind="stable")
        line = "--" if rows["is_beside"].any() else "-"
        line = "" if rows["x"].duplicated().any() else line
        _draw_points(axes, rows, rows["x"], rows["y"], number, line)
        if rows["spread"].any():
            bars = {"fmt": "none", "ecolor": rows["colour"].iloc[0], "capsize": 2.5}
            axes.errorbar(rows["x"], rows["y"], rows["spread"], **bars)
    _mark_places(axes, np.unique(drawn["x"]), log)
    axes.set(xlabel=with_unit(x), ylabel=with_unit(y))
    axes.grid(**GRID)
    if is_log:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    elif not (drawn["y"] < 0).any():
        axes.set_ylim(bottom=0)


def _draw_points(
    axes: Axes,
    rows: pandas.DataFrame,
    x: pandas.Series,
    y: pandas.Series,
    number: int,
    line: str = "",
) -> None:
    """Draw rows of one label as points, joined by a `line` in its style; noisy ones are hollow."""
    label, colour, is_beside = rows[["label", "colour", "is_beside"]].iloc[0]
    marker = MARKERS[number % len(MARKERS)] if is_beside else "o"
    look = {"color": colour, "marker": marker, "markersize": 5}
    noisy = rows["noisy"]
    axes.plot(x, y, linestyle=line, label=label or None, **look)
    axes.plot(x[noisy], y[noisy], linestyle="", markerfacecolor="white", zorder=3, **look)


def _mark_places(axes: Axes, places: np.ndarray, log: str | None) -> None:
    """Scale the x axis, and mark it at the places themselves as far as there is room."""
    is_doubling = len(places) > 0 and all(
        place >= 1 and math.log2(place).is_integer() for place in places
    )
    is_wide = is_doubling and places[-1] >= LEAST_RANGE * places[0]
    if is_wide if log is None else "x" in log:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        if is_doubling:
            marks = places[:: math.ceil(len(places) / MOST_TICKS)]
            axes.set_xticks(marks, [f"{mark:,.0f}" for mark in marks])
    elif len(places) > 1 and np.diff(places).min() > np.ptp(places) / MOST_TICKS:
        axes.set_xticks(places)
    elif all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_bars(axes: Axes, drawn: pandas.DataFrame, is_log: bool) -> None:
    """Draw a group of bars for each name, from top to bottom; each bar has its number.

    On a logarithmic axis they are points: such an axis has no zero where a bar could begin.
    """
    row, names = pandas.factorize(drawn["name"])
    count = drawn["name"].map(drawn["name"].value_counts())
    thickness = 0.8 / count.max()
    middle = row + (drawn.groupby("name").cumcount() - (count - 1) / 2) * thickness
    for number, (_, rows) in enumerate(drawn.groupby(["is_beside", "label"], sort=False)):
        if is_log:
            _draw_points(axes, rows, rows["y"], middle[rows.index], number)
        else:
            _draw_group(axes, rows, middle[rows.index], 0.9 * thickness)
    if drawn["spread"].any():
        bars = {"fmt": "none", "ecolor": BEFORE, "capsize": 2.5}
        axes.errorbar(drawn["y"], middle, xerr=drawn["spread"], **bars)
    for place, value, spread in zip(middle, drawn["y"], drawn["spread"], strict=True):
        if not np.isnan(value):
            write_beside(axes, value + spread, place, str(short(value)))
    name_rows(axes, list(names))
    if is_log:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)


def _draw_group(
    axes: Axes, rows: pandas.DataFrame, middle: pandas.Series, thickness: float
) -> None:
    """Draw the bars of one label: filled, or hatched and dashed if beside; noisy ones hollow."""
    label, colour, is_beside = rows[["label", "colour", "is_beside"]].iloc[0]
    axes.barh(
        middle,
        rows["y"],
        thickness,
        label=label or None,
        edgecolor=colour,
        facecolor="white" if is_beside else colour,
        hatch="////" if is_beside else None,
        linestyle="--" if is_beside else "-",
    )
    noisy = rows["noisy"]
    axes.barh(middle[noisy], rows["y"][noisy], thickness, edgecolor=colour, facecolor="white")


def _plain_numbers(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten, a short one at 2 and 5 of them too."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
    axis.set_minor_locator(NullLocator())
