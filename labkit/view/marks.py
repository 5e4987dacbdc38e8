"""Measured rows as marks on an axes: lines over numbers, bars or points beside names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from labkit.bench.grid import NOISY
from labkit.view.series import LONGEST_NAME, Series, with_unit
from labkit.view.style import (
    BEFORE,
    LEGEND_ROW_IN,
    Font,
    drawable,
    legend_above,
    legend_columns,
)

LONG_NUMBER = 2**17  # from here on powers of two are written as such
LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_TICKS = 13
PANEL_IN = 3.0
BAR_IN = 0.2
DIGITS = 3  # of the number at a bar
LEAST_DIGITS = 2  # of the smallest, so that a ratio can be formed
MOST_TIMES = 1000  # largest over smallest number, up to which all have as many decimals
NOTE = Font(size=7.5, colour=BEFORE)
GRID = {"color": "#E6E6E6", "linewidth": 0.8}
HOLLOW = f"hollow: noisy, spread above {NOISY:.0%} of the median"


def is_lines(series: Sequence[Series]) -> bool:
    """Return whether lines are drawn over numbers, rather than bars beside names."""
    return all(each.places is not None for each in series)


def draw_series(axes: Axes, series: Sequence[Series], x: str, y: str, log: str | None) -> float:
    """Draw lines over numbers or bars beside names; return the height that they need, inches."""
    axes.set_axisbelow(True)
    if is_lines(series):
        draw_lines(axes, series, log)
        axes.set_xlabel(with_unit(x), parse_math=False)
        axes.set_ylabel(with_unit(y), parse_math=False)
        axes.grid(**GRID)
        return PANEL_IN
    draw_bars(axes, series, log or "")
    axes.set_xlabel(with_unit(y), parse_math=False)
    axes.grid(axis="x", **GRID)
    return bars_in(series)


def bars_in(series: Sequence[Series]) -> float:
    """Return the height of an axes with a bar for each row, inches."""
    return BAR_IN * sum(len(each.names) for each in series) + 0.7


def legend_labels(series: Sequence[Series]) -> list[str]:
    """Return what the legend names: the series, and the hollow points where there are some."""
    labels = [each.label for each in series if each.label]
    return [*labels, HOLLOW] if any(each.noisy.any() for each in series) else labels


def legend_in(series: Sequence[Series]) -> float:
    """Return the height of the legend, inches."""
    labels = legend_labels(series)
    return LEGEND_ROW_IN * math.ceil(len(labels) / legend_columns(labels))


def draw_legend(axes: Axes, series: Sequence[Series]) -> None:
    """Name the series and what is hollow, above the axes."""
    labels = legend_labels(series)
    handles, _ = axes.get_legend_handles_labels()
    if HOLLOW in labels:
        has_points = is_lines(series) or axes.get_xscale() == "log"
        hollow = Line2D([], [], color=BEFORE, marker="o" if has_points else "s", label=HOLLOW)
        hollow.set_markerfacecolor("white")
        hollow.set_linestyle("")
        handles.append(hollow)
    if labels:
        legend_above(axes, handles, legend_columns(labels))


def draw_lines(axes: Axes, series: Sequence[Series], log: str | None) -> None:
    """Draw a line for each series, broken where a value is missing."""
    for each in series:
        places = np.asarray(each.places)
        style = "--" if each.is_beside else "-"
        if each.mixed or len(np.unique(places)) < len(places):
            style = ""
        look = {"color": each.colour, "marker": each.marker, "markersize": 5, "alpha": each.alpha}
        axes.plot(places, each.values, linestyle=style, label=each.label or None, **look)
        if each.spread.any():
            bars = {"fmt": "none", "ecolor": each.colour, "capsize": 2.5, "alpha": each.alpha}
            axes.errorbar(places, each.values, each.spread, **bars)
        hollow = {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
        axes.plot(places[each.noisy], each.values[each.noisy], **look, **hollow)
    every = [np.asarray(each.places) for each in series]
    mark_places(axes, np.concatenate(every) if every else np.empty(0), log)
    if "y" in (log or "") and has_positive(series):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    elif not any((each.values < 0).any() for each in series):
        axes.set_ylim(bottom=0)


def mark_places(axes: Axes, places: np.ndarray, log: str | None) -> None:
    """Scale the x axis, and mark it at the places themselves as far as there is room."""
    places = np.unique(places[np.isfinite(places)])
    doubling = len(places) > 0 and all(
        place >= 1 and math.log2(place).is_integer() for place in places
    )
    is_wide = doubling and places[-1] >= LEAST_RANGE * places[0]
    is_log = is_wide if log is None else "x" in log
    if is_log:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        if doubling:
            marks = places[:: math.ceil(len(places) / MOST_TICKS)]
            axes.set_xticks(marks, powers_of_two(marks))
    elif len(places) > 1 and np.diff(places).min() > np.ptp(places) / MOST_TICKS:
        axes.set_xticks(places)
    elif all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_bars(axes: Axes, series: Sequence[Series], log: str) -> None:
    """Draw a group of bars for each name, from top to bottom; each bar has its number.

    On a logarithmic axis they are points: such an axis has no zero where a bar could begin.
    """
    bars = Counter(name for each in series for name in each.names)  # in the order of the rows
    rows = {name: row for row, name in enumerate(bars)}
    thickness = 0.8 / max(bars.values(), default=1)
    is_log = "y" in log and has_positive(series)
    write = writer_of(np.concatenate([each.values for each in series]), is_log)
    drawn: Counter[str] = Counter()
    for each in series:
        middles = []
        for name in each.names:
            middles.append(rows[name] + (drawn[name] - (bars[name] - 1) / 2) * thickness)
            drawn[name] += 1
        if is_log:
            draw_points(axes, each, np.array(middles))
        else:
            draw_group(axes, each, np.array(middles), 0.9 * thickness)
        write_numbers(axes, each, middles, write)
    axes.set_yticks(range(len(bars)), [drawable(name, LONGEST_NAME) for name in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.margins(x=0.1)  # room for the number at the end of the longest bar
    axes.tick_params(axis="y", length=0)
    if is_log:
        axes.set_xscale("log")
        axes.grid(axis="y", **GRID)
        plain_numbers(axes.xaxis)


def draw_group(axes: Axes, series: Series, middles: np.ndarray, thickness: float) -> None:
    """Draw the bars of one series: filled, or hatched and dashed if beside; noisy ones hollow."""
    axes.barh(
        middles,
        series.values,
        thickness,
        xerr=series.spread if series.spread.any() else None,
        error_kw={"ecolor": NOTE.colour, "capsize": 2.5},
        label=series.label or None,
        edgecolor=series.colour,
        facecolor="white" if series.is_beside else series.colour,
        hatch="////" if series.is_beside else None,
        linestyle="--" if series.is_beside else "-",
        alpha=series.alpha,
    )
    noisy = series.values[series.noisy]
    axes.barh(middles[series.noisy], noisy, thickness, edgecolor=series.colour, facecolor="white")


def draw_points(axes: Axes, series: Series, middles: np.ndarray) -> None:
    """Draw one series as points beside its names; noisy ones hollow."""
    look = {"color": series.colour, "marker": series.marker, "markersize": 6, "linestyle": ""}
    look["alpha"] = series.alpha
    axes.plot(series.values, middles, label=series.label or None, **look)
    if series.spread.any():
        bars = {"fmt": "none", "ecolor": series.colour, "capsize": 2.5}
        axes.errorbar(series.values, middles, xerr=series.spread, **bars)
    noisy = series.values[series.noisy]
    axes.plot(noisy, middles[series.noisy], markerfacecolor="white", zorder=3, **look)


def write_numbers(
    axes: Axes, series: Series, middles: Sequence[float], write: Callable[[float], str]
) -> None:
    """Write each value of a series after its bar or point, and after its error bar."""
    for value, spread, middle in zip(series.values, series.spread, middles, strict=True):
        if not np.isnan(value):
            axes.annotate(
                write(value),
                (value + spread, middle),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=NOTE.size,
            )


def writer_of(values: np.ndarray, is_log: bool) -> Callable[[float], str]:
    """Return what writes a figure's numbers.

    All have the decimals that show three digits of the largest number and two of the smallest.
    Where those would be many, and on a logarithmic axis, each number has three digits.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(sizes):
        return "{:.0f}".format
    if is_log or sizes.max() > MOST_TIMES * sizes.min():
        return three_digits
    if all(size.is_integer() for size in sizes):
        return "{:,.0f}".format
    decimals = max(DIGITS - 1 - exponent(sizes.max()), LEAST_DIGITS - 1 - exponent(sizes.min()), 0)
    return f"{{:,.{decimals}f}}".format


def three_digits(value: float) -> str:
    """Write a number with three digits, as in 0.100, or with all that it has before the point."""
    if value == 0:
        return "0"
    return f"{value:,.{max(DIGITS - 1 - exponent(value), 0)}f}"


def exponent(value: float) -> int:
    """Return the power of ten of a number's first digit."""
    return math.floor(math.log10(abs(value)))


def has_positive(series: Sequence[Series]) -> bool:
    """Return whether there is a value that a logarithmic axis can show."""
    return any((each.values > 0).any() for each in series)


def plain_numbers(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten, a short one at 2 and 5 of them too."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
    axis.set_minor_locator(NullLocator())


def powers_of_two(marks: np.ndarray) -> list[str]:
    """Write the marks of an axis: all in digits, or all as powers where one has many digits."""
    if marks.max() < LONG_NUMBER:
        return [f"{mark:,.0f}" for mark in marks]
    return [f"$2^{{{math.log2(mark):.0f}}}$" for mark in marks]
