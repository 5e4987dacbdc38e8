"""Measured rows as marks on an axes: lines over numbers, bars or points beside names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from labkit.results.measurements import short
from labkit.view.primitives import write_beside
from labkit.view.series import LONGEST_NAME, Series, with_unit
from labkit.view.style import BEFORE, LEGEND_ROW_IN, drawable, legend_above, legend_columns

LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_TICKS = 10
PANEL_IN = 3.0
BAR_IN = 0.2
GRID = {"color": "#E6E6E6", "linewidth": 0.8}


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


def legend_in(series: Sequence[Series]) -> float:
    """Return the height of the legend, inches."""
    labels = [each.label for each in series if each.label]
    return LEGEND_ROW_IN * math.ceil(len(labels) / legend_columns(labels))


def draw_legend(axes: Axes) -> None:
    """Name the series above the axes, where they have names."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        legend_above(axes, handles, legend_columns(labels))


def draw_lines(axes: Axes, series: Sequence[Series], log: str | None) -> None:
    """Draw a line for each series, broken where a value is missing; noisy points are hollow."""
    for each in series:
        places = np.asarray(each.places)
        style = "--" if each.is_beside else "-"
        if len(np.unique(places)) < len(places):
            style = ""
        draw_points(axes, each, places, each.values, style)
        if each.spread.any():
            bars = {"fmt": "none", "ecolor": each.colour, "capsize": 2.5, "alpha": each.alpha}
            axes.errorbar(places, each.values, each.spread, **bars)
    every = [np.asarray(each.places) for each in series]
    mark_places(axes, np.concatenate(every) if every else np.empty(0), log)
    if "y" in (log or "") and has_positive(series):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    elif not any((each.values < 0).any() for each in series):
        axes.set_ylim(bottom=0)


def draw_points(axes: Axes, series: Series, x: np.ndarray, y: np.ndarray, line: str = "") -> None:
    """Draw the points of one series, joined by a `line` in its style; noisy ones are hollow."""
    look = {"color": series.colour, "marker": series.marker, "alpha": series.alpha, "markersize": 5}
    axes.plot(x, y, linestyle=line, label=series.label or None, **look)
    hollow = {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
    axes.plot(x[series.noisy], y[series.noisy], **look, **hollow)


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
            axes.set_xticks(marks, [f"{mark:,.0f}" for mark in marks])
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
    drawn: Counter[str] = Counter()
    for each in series:
        places = []
        for name in each.names:
            places.append(rows[name] + (drawn[name] - (bars[name] - 1) / 2) * thickness)
            drawn[name] += 1
        middles = np.array(places)
        if is_log:
            draw_points(axes, each, each.values, middles)
        else:
            draw_group(axes, each, middles, 0.9 * thickness)
        if each.spread.any():
            error_bars = {"fmt": "none", "ecolor": BEFORE, "capsize": 2.5}
            axes.errorbar(each.values, middles, xerr=each.spread, **error_bars)
        for end, middle, value in zip(each.values + each.spread, middles, each.values, strict=True):
            if not np.isnan(value):
                write_beside(axes, end, middle, str(short(value)))
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
        label=series.label or None,
        edgecolor=series.colour,
        facecolor="white" if series.is_beside else series.colour,
        hatch="////" if series.is_beside else None,
        linestyle="--" if series.is_beside else "-",
        alpha=series.alpha,
    )
    noisy = series.values[series.noisy]
    axes.barh(middles[series.noisy], noisy, thickness, edgecolor=series.colour, facecolor="white")


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
