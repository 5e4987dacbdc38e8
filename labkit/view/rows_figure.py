"""`lk.plot`: measured rows as a figure, lines over numbers and bars or points beside names."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from labkit.bench.grid import NOISY
from labkit.results.measurements import UNITS, MeasurementsData, short
from labkit.view.primitives import name_rows, write_beside
from labkit.view.style import (
    BEFORE,
    BOLD,
    GREY,
    LINES,
    Picture,
    drawable,
    legend_above,
    our_style,
    page,
)

Rows = pandas.DataFrame | MeasurementsData

LOGS = (None, "", "x", "y", "xy")
HOLLOW = f"hollow: noisy, spread above {NOISY:.0%} of the median"
LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_TICKS = 10
MOST_NAMED = 6  # places on a plain axis that are marked themselves
LINES_IN = 3.3  # height of axes with lines
BAR_IN = 0.2
GRID = {"color": "#E6E6E6", "linewidth": 0.8}
LONGEST_NAME = 80
GITHUB = r"https?://github\.com/([^/]+/[^/]+).*"
UNITS_AT_END = UNITS | {"s": "s", "w": "W", "gb": "GB", "kib": "KiB", "mib": "MiB", "gib": "GiB"}
WHISKER = {"fmt": "none", "ecolor": BEFORE, "capsize": 2.5}


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
    rows, beside = as_of_now(rows), None if beside is None else as_of_now(beside)
    drawn = tidied(rows, x, y, by, beside)
    notes = [*dict.fromkeys(_origins_of(rows, x, by)), *_notes_of(drawn, y)]
    header = [(title, BOLD), *((note, GREY) for note in notes)]
    figure, [axes] = page(header, [height_in(drawn)])
    draw_rows(axes, drawn, x, y, log)
    legend_above(axes)
    return figure


def as_of_now(table: Rows) -> Rows:
    """Return a table that stays as it is while it is drawn: of one that grows, what is there."""
    return table if isinstance(table, pandas.DataFrame) else table.data


def frame_of(table: Rows) -> pandas.DataFrame:
    """Return a table's rows."""
    return table if isinstance(table, pandas.DataFrame) else table.rows


def tidied(
    table: Rows, x: str, y: str, by: str | None = None, beside: Rows | None = None
) -> pandas.DataFrame:
    """Return what is drawn of a table, and of one beside it; the same value has the same colour.

    Columns: `x` (NaN where it is text) and its `name` in words; `y`, NaN where there is none, and
    `why`; `spread`, half of the interquartile range; `noisy`; `is_beside`; `label` and `colour`,
    the same for rows that a line joins; `fill`. Raises ValueError where a column is missing.
    """
    drawn = _drawn_of(table, x, y, by).assign(is_beside=False, label=lambda rows: rows["key"])
    if beside is not None:
        drawn["label"] = _labels(drawn, _origins_of(table, x, by), "here")
        other = _drawn_of(beside, x, y, by if by in frame_of(beside) else None)
        label = _labels(other, _origins_of(beside, x, by), "beside")
        drawn = pandas.concat([drawn, other.assign(is_beside=True, label=label)], ignore_index=True)
    key = drawn["key"].where(drawn["key"] != "", drawn["label"])
    drawn["colour"] = np.array(LINES)[pandas.factorize(key)[0] % len(LINES)]
    drawn["fill"] = drawn["colour"].mask(drawn["noisy"] | drawn["is_beside"], "white")
    return drawn


def _drawn_of(table: Rows, x: str, y: str, by: str | None) -> pandas.DataFrame:
    """Return the columns of `tidied` that a table alone tells; `key` is the value of `by`."""
    frame = frame_of(table)
    for column in filter(None, (x, y, by)):
        if column not in frame:
            raise ValueError(f"No column {column!r}; there are: {', '.join(frame.columns)}.")
    found = pandas.DataFrame({"y": _numbers(frame, y), "why": ""})
    if "error" in frame:
        found["why"] = frame["error"].fillna("").to_numpy()
    found.loc[np.isinf(found["y"]) | (found["why"] != ""), "y"] = np.nan
    found["x"] = _numbers(frame, x) if _is_number(frame[x]) else np.nan
    found["name"] = [word(each) for each in frame[x]]
    iqr = f"iqr_{y}"
    found["spread"] = np.nan_to_num(_numbers(frame, iqr)) / 2 if iqr in frame else 0.0
    found["noisy"] = frame["noisy"].eq(True).to_numpy() if "noisy" in frame else False
    found["key"] = "" if by is None else _in_words(frame[by])
    return found


def _numbers(frame: pandas.DataFrame, column: str) -> np.ndarray:
    """Return a column as numbers, NaN where there is none."""
    try:
        return frame[column].to_numpy(float, na_value=np.nan)
    except (ValueError, TypeError):
        raise ValueError(f"Column {column!r} holds no numbers: choose another one.") from None


def _in_words(column: pandas.Series) -> list[str]:
    """Return each value of a column in words, "batch size 64" of a number."""
    has_name = _is_number(column) or column.dtype == bool
    what = f"{str(column.name).replace('_', ' ')} " if has_name else ""
    return [drawable(f"{what}{word(value)}", LONGEST_NAME) for value in column]


def _is_number(column: pandas.Series) -> bool:
    """Return whether a column holds numbers; True and False are names."""
    return column.dtype.kind in "iuf"


def word(value: object) -> str:
    """Write one cell of a table: 512 for 512.0."""
    return f"{value:.10g}" if isinstance(value, (float, np.floating)) else str(value)


def _labels(drawn: pandas.DataFrame, origins: list[str], otherwise: str) -> list[str]:
    """Return what the legend calls each row where two tables stand side by side."""
    both = zip(drawn["key"], origins, strict=True)
    return [", ".join(filter(None, each)) or otherwise for each in both]


def _origins_of(table: Rows, x: str, by: str | None) -> list[str]:
    """Say of each row where it was measured, by others too: "A40, published by OWNER/REPO"."""
    frame = frame_of(table)
    origins = [getattr(table, "mark", "") or ""] * len(frame)
    if "source" in frame:
        origins = "published by " + frame["source"].replace(GITHUB, r"\1", regex=True)
    if "card" in frame and "card" not in (x, by):
        both = zip(frame["card"], origins, strict=True)
        origins = [", ".join(filter(None, each)) for each in both]
    return list(origins)


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "step, ms", "batch size"."""
    if column in UNITS_AT_END:
        return UNITS_AT_END[column]
    words = column.replace("_per_", "/")
    name, _, unit = words.rpartition("_")
    if name and unit in UNITS_AT_END:
        words = f"{name}, {UNITS_AT_END[unit]}"
    return words.replace("_", " ")


def _notes_of(drawn: pandas.DataFrame, y: str) -> list[str]:
    """Return what stands above the axes: what is missing, "float32: out of memory (512)" ..."""
    notes = []
    missing = drawn[drawn["y"].isna()]
    for _, rows in missing.groupby(["label", "why"], sort=False):
        first = rows.iloc[0]
        reason = drawable(first["why"] or f"no {y}", LONGEST_NAME)
        label = f"{first['label']}: " if first["label"] else ""
        notes.append(f"{label}{reason} ({', '.join(rows['name'])})")
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
    is_log = "y" in (log or "")
    if not is_lines(drawn):
        _draw_names(axes, drawn, is_log)
        axes.set_xlabel(with_unit(y))
        axes.grid(axis="both" if is_log else "x", **GRID)
        return
    for _, rows in drawn.groupby(["is_beside", "label"], sort=False):
        _draw_line(axes, rows.sort_values("x", kind="stable"))
    _mark_places(axes, np.unique(drawn["x"]), log)
    axes.set(xlabel=with_unit(x), ylabel=with_unit(y))
    axes.grid(**GRID)
    if is_log:
        _make_log(axes, "y")
    elif not (drawn["y"] < 0).any():
        axes.set_ylim(bottom=0)


def _draw_line(axes: Axes, rows: pandas.DataFrame) -> None:
    """Draw the rows of one label: a line through their points, dashed where it is beside."""
    first = rows.iloc[0]
    line = "--" if first["is_beside"] else "-"
    if rows["x"].duplicated().any():
        line = ""
    look = {"color": first["colour"], "linestyle": line, "label": first["label"] or None}
    axes.plot(rows["x"], rows["y"], marker="" if line else "o", markersize=5, **look)
    axes.scatter(rows["x"], rows["y"], s=25, c=rows["fill"], edgecolors=first["colour"], zorder=3)
    if rows["spread"].any():
        axes.errorbar(rows["x"], rows["y"], rows["spread"], **WHISKER)


def _draw_names(axes: Axes, drawn: pandas.DataFrame, is_log: bool) -> None:
    """Draw a group of bars for each name, from top to bottom; each bar has its number.

    On a logarithmic axis they are points: such an axis has no zero where a bar could begin.
    """
    row, names = pandas.factorize(drawn["name"])
    count = drawn["name"].map(drawn["name"].value_counts())
    thickness = 0.8 / count.max()
    middle = row + (drawn.groupby("name").cumcount() - (count - 1) / 2) * thickness
    for _, rows in drawn.groupby(["is_beside", "label"], sort=False):
        first = rows.iloc[0]
        place = middle[rows.index]
        look = {
            "color": rows["fill"],
            "edgecolor": first["colour"],
            "label": first["label"] or None,
        }
        if is_log:
            axes.scatter(rows["y"], place, s=25, **look)
        else:
            hatch = "////" if first["is_beside"] else None
            axes.barh(place, rows["y"], 0.9 * thickness, hatch=hatch, **look)
    if drawn["spread"].any():
        axes.errorbar(drawn["y"], middle, xerr=drawn["spread"], **WHISKER)
    for place, value, spread in zip(middle, drawn["y"], drawn["spread"], strict=True):
        if not np.isnan(value):
            write_beside(axes, value + spread, place, str(short(value)))
    name_rows(axes, list(names))
    if is_log:
        _make_log(axes, "x")


def _mark_places(axes: Axes, places: np.ndarray, log: str | None) -> None:
    """Scale the x axis; powers of two over a wide range are marked themselves."""
    is_doubling = len(places) > 0 and bool(np.all(np.log2(places.clip(min=0.1)) % 1 == 0))
    is_wide = is_doubling and places[-1] >= LEAST_RANGE * places[0]
    if is_wide if log is None else "x" in log:
        _make_log(axes, "x")
        if is_doubling:
            axes.set_xticks(places[:: len(places) // MOST_TICKS + 1])
    elif len(places) <= MOST_NAMED:
        axes.set_xticks(places)


def _make_log(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, in plain numbers; a short one is marked at 2 and 5 too."""
    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter("{x:,.7g}")
    axis.set_minor_locator(NullLocator())
