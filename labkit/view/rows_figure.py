"""`lk.plot`: measured rows as a figure, lines over numbers and bars for names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from labkit.spec import NOISY
from labkit.view.style import (
    DPI,
    LEGEND_ROW_IN,
    LINES,
    WIDTH_IN,
    Picture,
    drawable,
    legend_above,
    legend_columns,
    our_style,
    wrapped,
)

UNITS = {"ms": "ms", "tflops": "TFLOP/s", "gib_s": "GiB/s"}  # columns that are called by their unit
ENDINGS = {"_per_s": "/s", "_ms": ", ms", "_s": ", s", "_w": ", W", "_gb": ", GB", "_gib": ", GiB"}
LOGS = (None, "", "x", "y", "xy")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")  # the first is for the reader's own points
LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_TICKS = 13
LONGEST_NAME = 80
PANEL_IN = 3.0
BAR_IN = 0.2
NOTE_IN = 0.14
TITLE_IN = 0.25
GREY = "#555555"
NOTE_SIZE = 7.5  # points
NOTE = {"fontsize": NOTE_SIZE, "color": GREY}
GRID = {"color": "#E6E6E6", "linewidth": 0.8}


class HasRows(Protocol):
    """What `lk.measure` returns, for one."""

    @property
    def rows(self) -> pandas.DataFrame:
        """The rows as a table."""
        ...


Table = pandas.DataFrame | HasRows


@dataclass(frozen=True)
class Series:
    """Rows that have one colour and one entry in the legend."""

    label: str
    rows: pandas.DataFrame
    values: np.ndarray  # of y; NaN where a row has none
    spread: np.ndarray  # half of the interquartile range; 0 where it is unknown
    noisy: np.ndarray
    colour: str
    marker: str
    is_beside: bool


@our_style
def plot(
    rows: Table,
    x: str,
    y: str,
    by: str | None = None,
    *,
    beside: Table | None = None,
    title: str = "",
    log: str | None = None,
) -> Picture:
    """Draw column `y` over column `x`: lines where x is a number, bars where it is text.

    Args:
        rows: What `lk.measure` or `lk.published` returned, or any DataFrame. A row with an `error`
            or without a `y` is a gap, named below the axes; one that is `noisy` is hollow.
        x: The column along the axis; powers of two are drawn at equal distances.
        y: The column to show; "ms" has the interquartile range as error bars.
        by: A column: each of its values has a colour.
        beside: Another such table, dashed: published numbers, or a record of another machine.
        title: Above the figure.
        log: The logarithmic axes: "x", "y", "xy", or "" for none. None decides for x alone.

    Rows with the same `x` are points without a line; a note says in which columns they differ.
    Raises ValueError on a column that is not there.
    """
    if log not in LOGS:
        raise ValueError(f"log={log!r} is not allowed: use 'x', 'y', 'xy', '' or None.")
    colours: dict[str, str] = {}
    series = series_of(rows, x, y, by, colours, own_name="" if beside is None else name_of(rows))
    if beside is not None:
        series += series_of(beside, x, y, by, colours)
    as_lines = all(is_numeric(each.rows[x]) for each in series)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Picture(dpi=DPI, facecolor="white", layout=layout)
    axes = figure.subplots()
    if as_lines:
        draw_lines(axes, series, x, y, log)
    else:
        draw_bars(axes, series, x, y, log or "")
    height = PANEL_IN if as_lines else BAR_IN * sum(len(each.rows) for each in series) + 0.7
    handles, labels = axes.get_legend_handles_labels()
    if any((each.noisy & ~np.isnan(each.values)).any() for each in series):
        label = f"hollow: noisy, spread above {NOISY:.0%} of the median"
        labels.append(label)
        marker = "o" if as_lines else "s"
        hollow = Line2D([], [], color=GREY, label=label, marker=marker, linestyle="")
        hollow.set_markerfacecolor("white")
        handles.append(hollow)
    if handles:
        columns = legend_columns(labels)
        legend_above(axes, handles, columns)
        height += LEGEND_ROW_IN * math.ceil(len(handles) / columns)
    left = {"x": 0.01, "ha": "left", "parse_math": False}
    if title:
        figure.suptitle(drawable(title), fontsize=10, fontweight="bold", **left)
        height += TITLE_IN
    notes = [line for line, _ in wrapped([(note, NOTE) for note in notes_of(rows, series, x, y)])]
    if notes:
        figure.supxlabel("\n".join(notes), **NOTE, **left)
    figure.set_size_inches(WIDTH_IN, height + NOTE_IN * len(notes))
    return figure


# -- from tables to series ------------------------------------------------------------------------


def series_of(
    table: Table,
    x: str,
    y: str,
    by: str | None,
    colours: dict[str, str],
    own_name: str | None = None,
) -> list[Series]:
    """Return a series for each value of `by`; of a table beside, which has no name, for each card.

    The same value of `by` has the same colour in both tables: `colours` keeps them.
    """
    is_beside = own_name is None
    frame = frame_of(table)
    needed = [x, y] if by is None or is_beside else [x, y, by]
    if missing := [column for column in needed if column not in frame]:
        raise ValueError(f"No column {missing[0]!r}; there are: {', '.join(frame.columns)}.")
    found = []
    by_card = "card" if is_beside and "card" not in (x, by) else None
    for number, (card, of_card) in enumerate(groups_of(frame, by_card)):
        for value, group in groups_of(of_card, by):
            label = value or own_name or ""
            if is_beside:
                label = ", ".join(filter(None, [card, value, origin_of(table, group)])) or "beside"
            key = value or f"{is_beside} {card}"
            colour = colours.setdefault(key, LINES[len(colours) % len(LINES)])
            marker = MARKERS[(number + is_beside) % len(MARKERS)]
            label = drawable(label, LONGEST_NAME)
            found.append(new_series(group, x, y, label, colour, marker, is_beside))
    return found


def new_series(
    rows: pandas.DataFrame, x: str, y: str, label: str, colour: str, marker: str, is_beside: bool
) -> Series:
    """Return a series of these rows, in the order of a numeric x."""
    if is_numeric(rows[x]):
        rows = rows.sort_values(x, kind="stable")
    values = numbers(rows, y)
    failed = np.array([bool(error_of(row)) for _, row in rows.iterrows()], bool)
    values[failed | ~np.isfinite(values)] = np.nan
    spread = np.zeros(len(rows))
    if y == "ms" and "iqr_ms" in rows:
        spread = np.nan_to_num(numbers(rows, "iqr_ms") / 2)
    noisy = np.zeros(len(rows), bool)
    if "noisy" in rows:
        noisy = rows["noisy"].eq(True).to_numpy(bool)  # None is not
    return Series(label, rows, values, spread, noisy, colour, marker, is_beside)


def frame_of(table: Table) -> pandas.DataFrame:
    """Return a table's rows."""
    return table if isinstance(table, pandas.DataFrame) else table.rows


def groups_of(
    frame: pandas.DataFrame, column: str | None
) -> Iterator[tuple[str, pandas.DataFrame]]:
    """Yield each value of a column in words, with its rows; all rows where there is no column."""
    if column is None or column not in frame:
        yield "", frame
        return
    words = pandas.Series([word(value) for value in frame[column]], frame.index, dtype=object)
    is_name = frame[column].dtype != bool and not is_numeric(frame[column])
    for value in words.unique():
        name = value if is_name else f"{column.replace('_', ' ')} {value}"
        yield name, frame.loc[words == value]


def numbers(rows: pandas.DataFrame, column: str) -> np.ndarray:
    """Return a column as numbers, NaN where there is none."""
    try:
        values = pandas.Series(pandas.to_numeric(rows[column]))
        return values.to_numpy(float, copy=True, na_value=np.nan)
    except (ValueError, TypeError):
        raise ValueError(f"Column {column!r} holds no numbers: choose another one.") from None


def is_numeric(column: pandas.Series) -> bool:
    """Return whether a column holds numbers; True and False are names."""
    types = pandas.api.types
    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


def error_of(row: pandas.Series) -> str:
    """Return why a row has no numbers; "" where it has."""
    error = row.get("error")
    return error if isinstance(error, str) else ""


# -- what is said of them -------------------------------------------------------------------------


def origin_of(table: Table, rows: pandas.DataFrame) -> str:
    """Say who measured these rows of a table, if others did: "published by OWNER/REPOSITORY"."""
    if not isinstance(table, pandas.DataFrame):
        return getattr(table, "mark", None) or ""
    if "source" not in rows or rows.empty:
        return ""
    sources = dict.fromkeys(
        "/".join(source.split("/")[3:5]) if "://github.com/" in source else source
        for source in rows["source"].astype(str)
    )
    return f"published by {', '.join(sources)}"


def name_of(table: Table) -> str:
    """Return what the legend calls the reader's own rows, which have another table beside them."""
    machine = getattr(table, "machine", None)
    here = f"measured here, {machine.name}" if machine else "your rows"
    return origin_of(table, frame_of(table)) or here


def notes_of(table: Table, series: list[Series], x: str, y: str) -> list[str]:
    """Return what stands below the axes: who measured, what is missing, what error bars are."""
    notes = []
    if origin := origin_of(table, frame := frame_of(table)):
        cards = frame["card"].unique() if "card" in frame and x != "card" else []
        notes.append(": ".join([", ".join(cards), origin]) if len(cards) else origin)
    notes += [note for each in series if (note := mixed(each.rows, x, y))][:1]
    for each in series:
        notes += gaps(each, x, y)
    if any(each.spread.any() for each in series):
        notes.append("error bars: interquartile range")
    return notes


def mixed(rows: pandas.DataFrame, x: str, y: str) -> str:
    """Say in which columns rows with the same x differ; "" where they differ in none."""
    same = rows.loc[rows.duplicated(x, keep=False)]
    known = (x, y, "source", "error", "noisy")
    cases = [c for c in same if c not in known and not pandas.api.types.is_float_dtype(same[c])]
    differ = [name for name in cases if same[name].map(word).groupby(same[x]).nunique().max() > 1]
    return f"several rows for one {x}: they differ in {', '.join(differ)}" if differ else ""


def gaps(series: Series, x: str, y: str) -> list[str]:
    """Say which rows have nothing to draw, and why: "float32: out of memory at 512"."""
    found: dict[str, list[str]] = {}
    for _, row in series.rows[np.isnan(series.values)].iterrows():
        why = drawable(error_of(row) or f"no {y}", LONGEST_NAME)
        found.setdefault(why, []).append(word(row[x]))
    name = f"{series.label}: " if series.label else ""
    return [f"{name}{why} at {', '.join(places)}" for why, places in found.items()]


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "step, ms", "batch size"."""
    if column in UNITS:
        return UNITS[column]
    for ending, unit in ENDINGS.items():
        if column.endswith(ending):
            return column.removesuffix(ending).replace("_", " ") + unit
    return column.replace("_", " ")


def word(value: object) -> str:
    """Write one cell of a table: 512 for 512.0."""
    return f"{value:.10g}" if isinstance(value, (float, np.floating)) else str(value)


def tick_text(value: float) -> str:
    """Write a number at a logarithmic axis; a large power of two as such."""
    exponent = math.log2(value)
    if value >= 2**17 and exponent.is_integer():
        return f"$2^{{{exponent:.0f}}}$"
    return f"{value:,g}"


# -- from series to marks -------------------------------------------------------------------------


def draw_lines(axes: Axes, series: list[Series], x: str, y: str, log: str | None) -> None:
    """Draw a line for each series, broken where a value is missing."""
    for each in series:
        places = each.rows[x].to_numpy(float)
        style = "--" if each.is_beside else "-"
        if each.rows[x].duplicated().any():
            style = ""
        look = {"color": each.colour, "marker": each.marker, "markersize": 5}
        label = each.label or None
        axes.plot(places, each.values, linestyle=style, label=label, **look)
        if each.spread.any():
            spread = {"fmt": "none", "ecolor": each.colour, "capsize": 2.5}
            axes.errorbar(places, each.values, each.spread, **spread)
        look |= {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
        axes.plot(places[each.noisy], each.values[each.noisy], **look)
    places = np.unique(np.concatenate([each.rows[x].to_numpy(float) for each in series]))
    places = places[np.isfinite(places)]
    axes.set_xlabel(with_unit(x), parse_math=False)
    axes.set_ylabel(with_unit(y), parse_math=False)
    axes.grid(**GRID)
    axes.set_axisbelow(True)
    doubling = len(places) > 0 and all(p >= 1 and math.log2(p).is_integer() for p in places)
    is_wide = doubling and places[-1] >= LEAST_RANGE * places[0]
    if "x" in log if log is not None else is_wide:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        if doubling:
            axes.set_xticks(places[:: math.ceil(len(places) / MOST_TICKS)])
    elif len(places) > 1 and np.diff(places).min() > np.ptp(places) / MOST_TICKS:
        axes.set_xticks(places)
    elif all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "y" in (log or "") and has_positive(series):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    elif not any((each.values < 0).any() for each in series):
        axes.set_ylim(bottom=0)


def draw_bars(axes: Axes, series: list[Series], x: str, y: str, log: str) -> None:
    """Draw a group of bars for each name, from top to bottom; each bar has its number."""
    names = [name for each in series for name in each.rows[x].map(word)]
    bars = Counter(names)  # of each group, in the order of the rows
    thickness = 0.8 / max(bars.values(), default=1)
    drawn: Counter[str] = Counter()
    for each in series:
        at = []
        for name in each.rows[x].map(word):
            middle = list(bars).index(name)
            at.append(middle + (drawn[name] - (bars[name] - 1) / 2) * thickness)
            drawn[name] += 1
        draw_group(axes, each, np.array(at), 0.9 * thickness)
    axes.set_yticks(range(len(bars)), [drawable(name, LONGEST_NAME) for name in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.margins(x=0.1)  # room for the number at the end of the longest bar
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(with_unit(y), parse_math=False)
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    if "y" in log and has_positive(series):
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)


def draw_group(axes: Axes, series: Series, at: np.ndarray, thickness: float) -> None:
    """Draw the bars of one series: filled, or hatched and dashed if beside; noisy ones hollow."""
    axes.barh(
        at,
        series.values,
        thickness,
        label=series.label or None,
        edgecolor=series.colour,
        facecolor="white" if series.is_beside else series.colour,
        hatch="////" if series.is_beside else None,
        linestyle="--" if series.is_beside else "-",
    )
    values = series.values[series.noisy]
    axes.barh(at[series.noisy], values, thickness, edgecolor=series.colour, facecolor="white")
    if series.spread.any():
        spread = {"fmt": "none", "ecolor": NOTE["color"], "capsize": 2.5}
        axes.errorbar(series.values, at, xerr=series.spread, **spread)
    for place, value, half in zip(at, series.values, series.spread, strict=True):
        if not np.isnan(value):
            text = f"  {value:,.0f}" if abs(value) >= 100 else f"  {value:.3g}"
            axes.text(value + half, place, text, va="center", fontsize=NOTE["fontsize"])


def has_positive(series: list[Series]) -> bool:
    """Return whether there is a value that a logarithmic axis can show."""
    return any((each.values > 0).any() for each in series)


def plain_numbers(axis: Axis) -> None:
    """Mark a logarithmic axis at powers of ten, a short one at 2 and 5 of them too."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_locator(NullLocator())
