"""What `lk.measure` measured: the rows of a grid, as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.bench.grid import NOISY
from labkit.quotas import GIB
from labkit.results.log_data import LogData, fact
from labkit.results.result import Result, Table
from labkit.stamps.record import Event
from labkit.text import counted

if TYPE_CHECKING:
    import pandas

UNITS = {"ms": "ms", "tflops": "TFLOP/s", "gib_s": "GiB/s"}  # of a time that was taken

Row = dict[str, Any]
"""One row of the table: the function's arguments, what it returned, and what was measured."""


class MeasurementsData(Result, LogData):
    """The rows that `lk.measure` has measured at one moment."""

    added: Sequence[MeasurementsData] = ()
    """Points that were measured afterwards, in the panel; each has a log of its own."""

    @property
    def all_rows(self) -> list[Row]:
        """Its rows; those of a point that was measured again are the last ones."""
        rows = [row_of(event) for event in self.all("row")]
        for each in self.added:
            for point in each.points:
                rows = [row for row in rows if not point.items() <= row.items()]
            rows += each.all_rows
        return rows

    # The function's name
    name: str = fact("spec", "measure", default="unknown")

    # The arguments of each call, in order
    points: list[Row] = fact("spec", "points", default=[])

    @property
    def rows(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame, one for each time that was taken.

        Columns: the arguments; what the function returned; `ms` (the median of a call), `iqr_ms`
        (the interquartile range), `noisy` (whether that is above a tenth of the median), `tflops`
        and `gib_s` where FLOPs and bytes were given, and `error`: why a row has no numbers.
        """
        import pandas

        return pandas.DataFrame(self.all_rows)

    @property
    def mistake(self) -> str | None:
        """The first row's error, where the function raised one in every row; else None.

        A row that was skipped or that ran out of memory is no mistake.
        """
        events = self.all("row")
        if {event.get("kind") for event in events} != {"mistake"}:
            return None
        return events[0].get("error")

    def __len__(self) -> int:
        return len(self.all_rows)

    @property
    def numbers(self) -> str:
        """How much was measured, in a few words."""
        failed = sum(row["error"] is not None for row in self.all_rows)
        return counted(len(self), "row") + (f", {failed} without numbers" if failed else "")

    @property
    def what(self) -> str:
        """The function that was measured."""
        return self.name

    def table(self) -> Table:
        """Return the rows, three digits of each number; columns without a value are left out."""
        return table_of(self.rows, f"{LogData.__repr__(self)}, {self.machine.line}")


def row_of(event: Event) -> Row:
    """Return one row of the table from its event in a log."""
    row = {**event["values"], "ms": None, "iqr_ms": None, "noisy": None}
    times = [each for each in event.get("seconds") or [] if each > 0]
    if times:
        low, middle, high = np.percentile(times, [25, 50, 75])
        row["ms"] = float(middle * 1e3)
        row["iqr_ms"] = float((high - low) * 1e3)
        row["noisy"] = bool(high - low > NOISY * middle)
        for amount, rate, unit in (("flops", "tflops", 1e12), ("bytes", "gib_s", GIB)):
            if event.get(amount):
                row[rate] = float(event[amount] / middle / unit)
    row["error"] = event.get("error")
    if event.get("kind") == "skipped":
        row["error"] = f"skipped: {row['error']}"
    return row


def short(value: object) -> object:
    """Return a number as it is printed: three digits, or all of them where it is a whole one."""
    if not isinstance(value, float) or not np.isfinite(value):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table_of(frame: pandas.DataFrame, title: str = "") -> Table:
    """Return a frame as it is printed, without the columns that have no value."""
    shown = frame.dropna(axis="columns", how="all").map(short).astype(object).fillna("-")
    return Table(shown.to_numpy().tolist(), [*shown], title, left=())
