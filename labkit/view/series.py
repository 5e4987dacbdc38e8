"""The rows of a table as `lk.plot` draws them, each with what it is called and its colour."""

from __future__ import annotations

import numpy as np
import pandas

from labkit.results.measurements import UNITS, MeasurementsData
from labkit.view.style import LINES, drawable

UNITS_AT_END = UNITS | {"s": "s", "w": "W", "gb": "GB", "kib": "KiB", "mib": "MiB", "gib": "GiB"}
LONGEST_NAME = 80
OF_GITHUB = "://github.com/"

Rows = pandas.DataFrame | MeasurementsData


def tidied(
    table: Rows, x: str, y: str, by: str | None = None, beside: Rows | None = None
) -> pandas.DataFrame:
    """Return what is drawn of a table, and of one beside it; the same value has the same colour.

    Columns: `x` (NaN where it is text) and its `name` in words; `y`, NaN where there is none, and
    `why`; `spread`, half of the interquartile range; `noisy`; `is_beside`; `label` and `colour`,
    the same for rows that a line joins. Raises ValueError where a column is missing.
    """
    own = _tidied(table, x, y, by)
    value = _words_of(frame_of(table), by)
    name = value if beside is None else value.where(value != "", _name_of(table))
    tables = [own.assign(label=name, key=value, is_beside=False)]
    if beside is not None:
        frame = frame_of(beside)
        card = _words_of(frame, None if "card" in (x, by) else "card")
        value = _words_of(frame, by)
        parts = zip(card, value, origins_of(beside), strict=True)
        name = [", ".join(filter(None, each)) or "beside" for each in parts]
        made = _tidied(beside, x, y).assign(label=name, is_beside=True)
        tables.append(made.assign(key=value.where(value != "", made["label"])))
    found = pandas.concat(tables, ignore_index=True)
    found["label"] = [drawable(label, LONGEST_NAME) for label in found["label"]]
    found["colour"] = np.array(LINES)[pandas.factorize(found["key"])[0] % len(LINES)]
    return found


def _tidied(table: Rows, x: str, y: str, by: str | None = None) -> pandas.DataFrame:
    """Return the columns of `tidied` that a row alone tells."""
    frame = frame_of(table)
    for column in filter(None, (x, y, by)):
        if column not in frame:
            raise ValueError(f"No column {column!r}; there are: {', '.join(frame.columns)}.")
    iqr = f"iqr_{y}"
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, "error", "noisy", iqr])))
    found = pandas.DataFrame(
        {
            "x": numbers(frame, x) if is_numeric(frame[x]) else np.nan,
            "name": [word(each) for each in frame[x]],
            "y": numbers(frame, y),
            "why": [each if isinstance(each, str) else "" for each in frame["error"]],
            "spread": np.nan_to_num(numbers(frame, iqr) / 2),
        }
    )
    found.loc[~np.isfinite(found["y"]) | (found["why"] != ""), "y"] = np.nan
    found["noisy"] = frame["noisy"].eq(True).to_numpy(bool) & found["y"].notna()  # None is not
    return found


def frame_of(table: Rows) -> pandas.DataFrame:
    """Return a table's rows."""
    return table if isinstance(table, pandas.DataFrame) else table.rows


def _words_of(frame: pandas.DataFrame, column: str | None) -> pandas.Series:
    """Return each value of a column in words, "batch size 64" of a number; "" without a column."""
    if column is None or column not in frame:
        return pandas.Series("", range(len(frame)))
    is_name = frame[column].dtype != bool and not is_numeric(frame[column])
    what = "" if is_name else f"{column.replace('_', ' ')} "
    return pandas.Series([f"{what}{word(value)}" for value in frame[column]], dtype=object)


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


def origins_of(table: Rows) -> list[str]:
    """Say of each row who measured it, if others did: "published by OWNER/REPOSITORY"."""
    frame = frame_of(table)
    if not isinstance(table, pandas.DataFrame):
        return [table.mark or ""] * len(frame)
    found = []
    for source in frame["source"].astype(str) if "source" in frame else [""] * len(frame):
        who = "/".join(source.split("/")[3:5]) if OF_GITHUB in source else source
        found.append(f"published by {who}" if who else "")
    return found


def _name_of(table: Rows) -> str:
    """Return what the legend calls the user's own rows, which have another table beside them."""
    origin = next(iter(origins_of(table)), "")
    if origin or isinstance(table, pandas.DataFrame):
        return origin or "your rows"
    return f"measured here, {table.machine.name}"


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "step, ms", "batch size"."""
    if column in UNITS_AT_END:
        return UNITS_AT_END[column]
    words = column.replace("_per_", "/")
    name, _, unit = words.rpartition("_")
    if name and unit in UNITS_AT_END:
        words = f"{name}, {UNITS_AT_END[unit]}"
    return words.replace("_", " ")


def word(value: object) -> str:
    """Write one cell of a table: 512 for 512.0."""
    return f"{value:.10g}" if isinstance(value, (float, np.floating)) else str(value)
