"""`lk.plot`: measured rows as a figure, lines over numbers and bars or points beside names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from labkit.bench.grid import NOISY, TIMED
from labkit.results.measurements import UNITS, MeasurementsData, short
from labkit.view.primitives import name_rows
from labkit.view.style import (
    BOLD,
    GREY,
    INK,
    LINES,
    Picture,
    drawable,
    legend_above,
    our_style,
    page,
)

Rows = pandas.DataFrame | MeasurementsData
Title = str | Callable[[pandas.DataFrame], str]

LOGS = (None, "", "x", "y", "xy")
BEST_FIRST = ("tflops", "gib_s", "ms")  # what is drawn where no `y` was asked for
LEAST_RANGE = 8  # powers of two over such a range are drawn at equal distances
MOST_MARKED = 9  # places that are marked themselves
LINES_IN = 3.3  # height of axes with lines
BAR_IN = 0.2
AROUND_IN = 0.9  # what stands around bars
GITHUB = r"https?://github\.com/([^/]+/[^/]+).*"
WHISKER = {"ecolor": INK, "capsize": 2.5}


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
    header = [(title, BOLD), *((note, GREY) for note in notes_of(drawn, y))]
    figure, [axes] = page(header, [height_in(drawn)])
    draw_rows(axes, drawn, x, y, log)
    legend_above(axes)
    return figure


def plot_measured(
    rows: MeasurementsData, x: str | None, y: str | None, by: str | None, title: Title, **more: Any
) -> Picture | None:
    """Draw the rows that are there by now, as far as they are asked for.

    Left out, `x` and `by` are the first arguments that vary, and `y` the best known measure; None
    without an x or a y. A `title` that fails while rows are missing is left out.
    """
    table = rows.rows.dropna(axis="columns", how="all")
    y = y or next((name for name in BEST_FIRST if name in table), None)
    own = table.columns.difference([*TIMED, y], sort=False)
    varying = [name for name in own if table[name].astype(str).nunique() > 1]
    x, second, *_ = [*varying, None, None] if x is None else [x, None]
    by = by or second
    if x is None or y is None or not {x, y} <= {*table}:
        return None
    if not isinstance(title, str):
        try:
            title = title(rows.rows)
        except Exception as error:  # whatever the user's function raises
            title = "" if rows.running else f"title: {type(error).__name__}: {error}"
    return plot(rows, x, y, by if by in table else None, title=title, **more)


def tidied(
    table: Rows, x: str, y: str, by: str | None = None, beside: Rows | None = None
) -> pandas.DataFrame:
    """Return what is drawn of a table, and of one beside it; the same value has the same colour.

    Columns: see `_tidied`; `label` and `colour`, the same for rows that a line joins; `fill`.
    Raises ValueError where a column is missing.
    """
    rows = _tidied(table, x, y, by)
    rows["label"] = rows["key"]
    if beside is not None:
        other = _tidied(beside, x, y, by, is_beside=True)
        rows = pandas.concat([rows, other], ignore_index=True)
        name = (rows["key"] + ", " + rows["origin"]).str.strip(", ")
        rows["label"] = name.mask(name == "", np.where(rows["is_beside"], "beside", "here"))
    key = rows["key"].mask(rows["key"] == "", rows["label"])
    rows["colour"] = np.array(LINES)[pandas.factorize(key)[0] % len(LINES)]
    rows["fill"] = rows["colour"].mask(rows["noisy"] | rows["is_beside"], "none")
    return rows


def _tidied(
    table: Rows, x: str, y: str, by: str | None, is_beside: bool = False
) -> pandas.DataFrame:
    """Return a row for each of a table, as it is now.

    Columns: `x` (NaN where it is text) and its `name` in words; `y`, NaN where there is none, and
    `why`; `spread`, half of the interquartile range; `noisy`; `key`, the value of `by` in words;
    `origin`, where it was measured: "A40, published by OWNER/REPO"; `is_beside`.
    """
    mark = None
    if not isinstance(table, pandas.DataFrame):
        now = table.data  # of one that grows, what is there
        table, mark = now.rows, now.mark
    for column in filter(None, (x, y, None if is_beside else by)):
        if column not in table:
            raise ValueError(f"No column {column!r}; there are: {', '.join(table.columns)}.")
    frame = table.reset_index(drop=True)
    iqr = f"iqr_{y}"
    optional = frame.reindex(columns=["error", "noisy", "card", "source", iqr]).astype(object)
    try:
        numbers = frame[y].astype(float)
    except (ValueError, TypeError):
        raise ValueError(f"Column {y!r} holds no numbers: choose another one.") from None
    why = optional["error"].fillna("")
    source = "published by " + optional["source"].replace(GITHUB, r"\1", regex=True)
    origin = source.fillna(mark or "")
    if "card" not in (x, by):
        origin = ((optional["card"] + ", ").fillna("") + origin).str.strip(", ")
    key = str(by).replace("_", " ") + " {:.10g}"  # "batch size 64"
    columns = {
        "x": frame[x].astype(float) if frame[x].dtype.kind in "iuf" else np.nan,  # no True or False
        "name": _in_words(frame[x]),
        "y": numbers.where(np.isfinite(numbers) & (why == "")),
        "why": why,
        "spread": optional[iqr].astype(float).replace(0, np.nan) / 2,
        "noisy": optional["noisy"].eq(True),
        "key": _in_words(frame[by], key).map(drawable) if by in frame else "",
        "origin": origin,
        "is_beside": is_beside,
    }
    return pandas.DataFrame(columns)


def _in_words(column: pandas.Series, numbers: str = "{:.10g}") -> pandas.Series:
    """Return each value of a column as text."""
    return column.map(numbers.format if column.dtype.kind in "iuf" else str)


def notes_of(drawn: pandas.DataFrame, y: str) -> list[str]:
    """Return what stands above the axes: origins, gaps: "float32: out of memory (512)" ..."""
    notes = [*drawn.loc[~drawn["is_beside"], "origin"].unique()]
    gaps = drawn[drawn["y"].isna()]
    for _, rows in gaps.groupby(["label", "why"], sort=False):
        label, why = rows.iloc[0][["label", "why"]]
        notes.append(f"{label and f'{label}: '}{why or f'no {y}'} ({', '.join(rows['name'])})")
    if drawn["spread"].notna().any():
        notes.append("error bars: half the interquartile range up and down")
    if drawn["noisy"].any():
        notes.append(f"hollow: noisy, spread above {NOISY:.0%} of the median")
    return notes


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "batch size", "img/s"."""
    return UNITS.get(column) or column.replace("_per_", "/").replace("_", " ")


def is_lines(drawn: pandas.DataFrame) -> bool:
    """Return whether lines are drawn over numbers, rather than bars beside names."""
    return bool(drawn["x"].notna().all())


def height_in(drawn: pandas.DataFrame) -> float:
    """Return the height of axes with lines, or with a bar for each row, inches."""
    return LINES_IN if is_lines(drawn) else BAR_IN * len(drawn) + AROUND_IN


def draw_rows(axes: Axes, drawn: pandas.DataFrame, x: str, y: str, log: str | None = None) -> None:
    """Draw `tidied` rows: lines over numbers, or bars beside names."""
    is_log = "y" in (log or "")
    if not is_lines(drawn):
        _draw_bars(axes, drawn, is_log)
        axes.set_xlabel(with_unit(y))
        axes.grid(axis="both" if is_log else "x")
        if is_log:
            _make_log(axes, "x")
        return
    for _, rows in drawn.groupby(["is_beside", "label"], sort=False):
        _draw_line(axes, rows.sort_values("x", kind="stable"))
    _mark_places(axes, np.unique(drawn["x"]), log)
    axes.set(xlabel=with_unit(x), ylabel=with_unit(y))
    axes.grid()
    if is_log:
        _make_log(axes, "y")
    elif not (drawn["y"] < 0).any():
        axes.set_ylim(bottom=0)


def _draw_bars(axes: Axes, rows: pandas.DataFrame, is_log: bool) -> None:
    """Draw a bar for each row, those of one name below each other, with its number behind it.

    On a logarithmic axis they are points: such an axis has no zero where a bar could begin.
    """
    row, names = pandas.factorize(rows["name"])
    count = rows["name"].map(rows["name"].value_counts())
    height = 0.8 / count.max()
    middle = row + (rows.groupby("name").cumcount() - (count - 1) / 2) * height
    for label, own in rows.groupby("label", sort=False):
        place = middle[own.index]
        look: dict[str, Any] = {
            "color": own["fill"],
            "edgecolor": own["colour"],
            "label": label or None,
        }
        if is_log:
            axes.scatter(own["y"], place, s=25, **look)
            look = {"alpha": 0}
        elif own["is_beside"].all():
            look["hatch"] = "////"
        bars = axes.barh(
            place, own["y"], 0.9 * height, xerr=own["spread"], error_kw=WHISKER, **look
        )
        axes.bar_label(bars, [str(short(value)) for value in own["y"]], padding=5)
    name_rows(axes, [*names])


def _draw_line(axes: Axes, rows: pandas.DataFrame) -> None:
    """Draw the rows of one label: a line through their points, dashed where it is beside."""
    first = rows.iloc[0]
    line = "--" if first["is_beside"] else "-"
    if rows["x"].duplicated().any():
        line = ""
    look = {"color": first["colour"], "linestyle": line, "label": first["label"] or None}
    axes.plot(rows["x"], rows["y"], marker="" if line else "o", markersize=5, **look)
    axes.scatter(rows["x"], rows["y"], s=25, c=rows["fill"], edgecolors=first["colour"], zorder=3)
    axes.errorbar(rows["x"], rows["y"], rows["spread"], fmt="none", **WHISKER)


def _mark_places(axes: Axes, places: np.ndarray, log: str | None) -> None:
    """Scale the x axis, logarithmic for powers of two over a wide range, and mark the places."""
    is_doubling = bool(np.all(np.log2(places.clip(min=0.1)) % 1 == 0))
    is_wide = places.max(initial=0) >= LEAST_RANGE * places.min(initial=np.inf)
    if is_doubling and is_wide if log is None else "x" in log:
        _make_log(axes, "x")
    if len(places) <= MOST_MARKED:
        axes.set_xticks(places)


def _make_log(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, in plain numbers; a short one is marked at 2 and 5 too."""
    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
    axis.set_major_formatter("{x:,.7g}")
    axis.set_minor_locator(NullLocator())
