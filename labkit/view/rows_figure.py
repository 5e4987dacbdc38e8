"""`lk.plot`: measured rows as a figure, lines over numbers and bars beside names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from labkit.bench.grid import TIMED
from labkit.results.measurements import UNITS, MeasurementsData, short
from labkit.view.style import INK, LINES, Picture, figure_text, legend_above, our_style, page

Rows = pandas.DataFrame | MeasurementsData

LOGS = (None, "", "x", "y", "xy")
LINES_IN = 3.3  # height of axes with lines
BAR_IN = 0.2
AROUND_IN = 0.9  # what stands around bars
WHISKER = {"ecolor": INK, "capsize": 2.5}
GITHUB = r"https?://github\.com/([^/]+/[^/]+).*"


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
        rows: What `lk.measure` or `lk.published` returned, or any DataFrame. A row without a `y`
            is a gap, named below the axes with its `error`.
        x: The column along the axis; powers of two are drawn at equal distances.
        y: The column to show; "ms" has error bars: half the interquartile range up and down.
        by: A column: each of its values has a colour.
        beside: Another such table, dashed or pale: published numbers, a record of another machine.
        title: Above the figure; left out, what is drawn.
        log: The logarithmic axes: "x", "y", "xy", or "" for none. None decides for x alone.

    Raises ValueError on a column that is not there.
    """
    if log not in LOGS:
        raise ValueError(f"log={log!r} is not allowed: use 'x', 'y', 'xy', '' or None.")
    drawn = _rows_to_draw(rows, x, y, by)
    if beside is not None:
        drawn = pandas.concat([drawn, _rows_to_draw(beside, x, y, by, True)], ignore_index=True)
    drawn["colour"] = np.take(LINES, pandas.factorize(drawn["key"])[0], mode="wrap")
    is_lines = _is_number(drawn["x"])
    height = LINES_IN if is_lines else BAR_IN * len(drawn) + AROUND_IN
    figure, [axes] = page(
        title or f"{with_unit(y)} over {with_unit(x)}", _notes(drawn, y), [height]
    )
    axes.grid()
    if is_lines:
        _draw_lines(axes, drawn, log)
        axes.set(xlabel=with_unit(x), ylabel=with_unit(y))
    else:
        _draw_bars(axes, drawn, log or "")
        axes.set_xlabel(with_unit(y))
    legend_above(axes)
    return figure


def plot_measurements(
    rows: MeasurementsData,
    x: str | None,
    y: str,
    by: str | None,
    title: str | Callable[[pandas.DataFrame], str],
    **more: Any,
) -> Picture | None:
    """Draw the rows that are there by now, as far as they are asked for.

    Left out, `x` and `by` are the first arguments that vary, and `y` is "ms"; None without an x or
    a y. A `title` that fails while rows are missing is left out.
    """
    table = rows.rows.dropna(axis="columns", how="all")
    own = table.columns.difference([*TIMED, y], sort=False)
    varying = [name for name in own if table[name].astype(str).nunique() > 1]
    x, second, *_ = [*varying, None, None] if x is None else [x, None]
    by = by or second
    if x is None or not {x, y} <= {*table}:
        return None
    if not isinstance(title, str):
        try:
            title = title(rows.rows)
        except Exception as error:  # whatever the user's function raises
            title = "" if rows.running else f"title: {error!r}"
    return plot(rows, x, y, by if by in table else None, title=title, **more)


def _rows_to_draw(
    table: Rows, x: str, y: str, by: str | None, is_beside: bool = False
) -> pandas.DataFrame:
    """Return what is drawn of a table, as it is now, in a row for each of its rows.

    Columns: `x`; `y`, NaN where there is none, and the `error`; `spread`, the interquartile range;
    `key`, the value of `by` in words, which has a colour; `origin`, where it was measured:
    "published by OWNER/REPO"; `label`, as in the legend; `is_beside`.

    Raises ValueError where a column is missing.
    """
    mark = None
    if not isinstance(table, pandas.DataFrame):
        now = table.data  # of one that grows, what is there
        table, mark = now.rows, now.mark
    for column in filter(None, (x, y, None if is_beside else by)):
        if column not in table:
            raise ValueError(f"No column {column!r}; there are: {', '.join(table.columns)}.")
    own = table.reset_index(drop=True)
    columns = {
        "x": own[x] if _is_number(own[x]) else own[x].map(str).map(figure_text),
        "y": own[y],
        "error": own.get("error", ""),
        "spread": own.get(f"iqr_{y}"),
        "key": "",
        "origin": mark or "",
        "is_beside": is_beside,
    }
    rows = pandas.DataFrame(columns).astype({"y": float, "spread": float}).fillna({"error": ""})
    if by in own:
        what = f"{by} ".replace("_", " ") if _is_number(own[by]) else ""  # "batch size 64"
        rows["key"] = own[by].map(lambda value: figure_text(f"{what}{value}"))
    if "source" in own:
        rows["origin"] = "published by " + own["source"].replace(GITHUB, r"\1", regex=True)
    named = rows["key"] + ", " + rows["origin"]
    return rows.assign(label=named.str.strip(", ") if is_beside else rows["key"])


def _is_number(column: pandas.Series) -> bool:
    return column.dtype.kind in "iuf"  # True and False are names


def _notes(drawn: pandas.DataFrame, y: str) -> list[str]:
    """Return what stands below the axes: where it was measured, and what has no number, and why."""
    notes = [*drawn.loc[~drawn["is_beside"], "origin"].unique()]
    gaps = drawn.loc[drawn["y"].isna(), ["label", "x", "error"]].astype(str)
    if len(gaps):
        rows = gaps.agg(" ".join, axis="columns").str.strip()
        notes.append(f"no {y}: {', '.join(rows)}")
    return notes


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "batch size", "img/s"."""
    return UNITS.get(column) or column.replace("_per_", "/").replace("_", " ")


def _draw_lines(axes: Axes, rows: pandas.DataFrame, log: str | None) -> None:
    """Draw a line through the rows of each label, dashed where they are beside."""
    for _, own in rows.groupby(["is_beside", "label"], sort=False):
        own = own.sort_values("x")
        first = own.iloc[0]
        look = {"color": first["colour"], "linestyle": "--" if first["is_beside"] else "-"}
        look |= {"marker": "o", "label": first["label"], **WHISKER}
        axes.errorbar(own["x"], own["y"], own["spread"] / 2, **look)
    places = np.unique(rows["x"])
    is_doubling = len(places) > 2 and (np.frexp(places)[0] == 0.5).all()
    if log is None:
        log = "x" if is_doubling else ""
    for name in log:
        _make_log(axes, name)
    if is_doubling:
        axes.set_xticks(places)
    if "y" not in log and not (rows["y"] < 0).any():
        axes.set_ylim(bottom=0)


def _draw_bars(axes: Axes, rows: pandas.DataFrame, log: str) -> None:
    """Draw a bar for each row, those of one name below each other, with its number behind it."""
    row, names = pandas.factorize(rows["x"])
    count = rows["x"].map(rows["x"].value_counts())
    height = 0.8 / count.max()
    place = row + (rows.groupby("x").cumcount() - (count - 1) / 2) * height
    colours = [*zip(rows["colour"], np.where(rows["is_beside"], 0.5, 1), strict=True)]  # or pale
    look = {"color": colours, "label": [*rows["label"]], "xerr": rows["spread"] / 2, **WHISKER}
    bars = axes.barh(place, rows["y"], 0.9 * height, **look)
    axes.bar_label(bars, [str(short(value)) for value in rows["y"]], padding=5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    if "y" in log:
        _make_log(axes, "x")
        axes.set_xlim(left=rows["y"].min() / 2)  # such an axis has no zero


def _make_log(axes: Axes, name: str) -> None:
    """Make an axis logarithmic, in plain numbers."""
    axes.set(**{f"{name}scale": "log"})
    ticks = {"major_locator": LogLocator(subs=(1, 2, 5)), "minor_locator": NullLocator()}
    getattr(axes, f"{name}axis").set(major_formatter="{x:,.7g}", **ticks)
