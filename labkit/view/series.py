"""The rows of a table as `lk.plot` draws them: a series for each colour, with its notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas

from labkit.results.measurements import UNITS, Measurements
from labkit.view.style import LINES, drawable

NAMED_BY_UNIT = UNITS | {"kib": "KiB", "mib": "MiB"}
ENDINGS = {
    "_per_s": "/s",
    "_ms": ", ms",
    "_s": ", s",
    "_w": ", W",
    "_gb": ", GB",
    "_kib": ", KiB",
    "_mib": ", MiB",
    "_gib": ", GiB",
}
MARKERS = ("o", "s", "D", "^", "v", "P", "X")  # the first is for the user's own points
LONGEST_NAME = 80
PALER = 0.35  # opacity
OF_GITHUB = "://github.com/"


Rows = pandas.DataFrame | Measurements


@dataclass(frozen=True)
class Series:
    """Rows that have one colour and one entry in the legend."""

    label: str
    names: list[str]  # of x, in words
    places: np.ndarray | None  # x as numbers; None where it is text
    values: np.ndarray  # of y; NaN where a row has none
    reasons: list[str]  # why; "" where a row has one
    spread: np.ndarray  # half of the interquartile range; 0 where it is unknown
    noisy: np.ndarray
    colour: str
    marker: str
    is_beside: bool
    alpha: float = 1.0

    def gaps(self, nothing: str) -> list[str]:
        """Say why rows have nothing to draw: "float32: out of memory (512)"."""
        found: dict[str, list[str]] = {}
        for name, value, reason in zip(self.names, self.values, self.reasons, strict=True):
            if np.isnan(value):
                found.setdefault(drawable(reason or nothing, LONGEST_NAME), []).append(name)
        label = f"{self.label}: " if self.label else ""
        return [f"{label}{why} ({', '.join(names)})" for why, names in found.items()]


class SeriesMaker:
    """Makes the series of a table and of one beside it; the same value has the same colour."""

    def __init__(self, x: str, y: str, by: str | None):
        self.x = x
        self.y = y
        self.by = by
        self.colours: dict[str, str] = {}

    def own(self, table: Rows, name: str = "") -> list[Series]:
        """Return a series for each value of `by`; `name` is that of rows without one."""
        found = []
        for value, rows in groups_of(self._checked(table, self.by), self.by):
            found.append(self._series(rows, value or name, value, MARKERS[0], is_beside=False))
        return found

    def paler(self, table: Rows) -> list[Series]:
        """Return the series of an earlier version of the user's own; one name stands for all."""
        found = []
        for series in self.own(table):
            label = "" if found else "paler: before the change"
            found.append(replace(series, alpha=PALER, label=label))
        return found

    def beside(self, table: Rows) -> list[Series]:
        """Return a series for each value of `by` of each card, of which `by` may be unknown."""
        by_card = None if "card" in (self.x, self.by) else "card"
        found = []
        frame = self._checked(table)
        for number, (card, of_card) in enumerate(groups_of(frame, by_card), 1):
            for value, rows in groups_of(of_card, self.by):
                said = filter(None, [card, value, origin_of(table, rows)])
                label = ", ".join(said) or "beside"
                key = value or f"beside {card}"
                marker = MARKERS[number % len(MARKERS)]
                found.append(self._series(rows, label, key, marker, is_beside=True))
        return found

    def _checked(self, table: Rows, by: str | None = None) -> pandas.DataFrame:
        """Return a table's rows; raise ValueError where a column is missing."""
        frame = frame_of(table)
        for column in filter(None, (self.x, self.y, by)):
            if column not in frame:
                raise ValueError(f"No column {column!r}; there are: {', '.join(frame.columns)}.")
        return frame

    def _series(
        self, rows: pandas.DataFrame, label: str, key: str, marker: str, is_beside: bool
    ) -> Series:
        """Return a series of these rows, in the order of a numeric x."""
        is_number = is_numeric(rows[self.x])
        if is_number:
            rows = rows.sort_values(self.x, kind="stable")
        iqr = f"iqr_{self.y}"
        columns = dict.fromkeys([*rows, "error", "noisy", iqr])
        rows = rows.reindex(columns=list(columns))  # NaN in those that are not there
        reasons = [error if isinstance(error, str) else "" for error in rows["error"]]
        values = numbers(rows, self.y)
        values[~np.isfinite(values) | (np.array(reasons, str) != "")] = np.nan
        noisy = rows["noisy"].eq(True).to_numpy(bool)  # None is not
        return Series(
            label=drawable(label, LONGEST_NAME),
            names=[word(value) for value in rows[self.x]],
            places=numbers(rows, self.x) if is_number else None,
            values=values,
            reasons=reasons,
            spread=np.nan_to_num(numbers(rows, iqr) / 2),
            noisy=noisy & ~np.isnan(values),
            colour=self.colours.setdefault(key, LINES[len(self.colours) % len(LINES)]),
            marker=marker,
            is_beside=is_beside,
        )


def frame_of(table: Rows) -> pandas.DataFrame:
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


def origin_of(table: Rows, rows: pandas.DataFrame) -> str:
    """Say who measured these rows of a table, if others did: "published by OWNER/REPOSITORY"."""
    if not isinstance(table, pandas.DataFrame):
        return table.mark or ""
    if "source" not in rows or rows.empty:
        return ""
    names = []
    for source in rows["source"].astype(str).unique():
        names.append("/".join(source.split("/")[3:5]) if OF_GITHUB in source else source)
    return f"published by {', '.join(dict.fromkeys(names))}"


def name_of(table: Rows) -> str:
    """Return what the legend calls the user's own rows, which have another table beside them."""
    origin = origin_of(table, frame_of(table))
    if origin or isinstance(table, pandas.DataFrame):
        return origin or "your rows"
    return f"measured here, {table.machine.name}"


def with_unit(column: str) -> str:
    """Return a column's name as an axis says it: "TFLOP/s", "step, ms", "batch size"."""
    if column in NAMED_BY_UNIT:
        return NAMED_BY_UNIT[column]
    for ending, unit in ENDINGS.items():
        if column.endswith(ending):
            return column.removesuffix(ending).replace("_", " ") + unit
    return column.replace("_", " ")


def word(value: object) -> str:
    """Write one cell of a table: 512 for 512.0."""
    return f"{value:.10g}" if isinstance(value, (float, np.floating)) else str(value)
