"""What `lk.measure` measured: the rows of a grid, as a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.bench.grid import NOISY, TIMED
from labkit.quotas import GIB
from labkit.results.log_data import LogData, fact
from labkit.stamps.record import Event
from labkit.text import counted

if TYPE_CHECKING:
    import pandas

UNITS = {"ms": "ms", "tflops": "TFLOP/s", "gib_s": "GiB/s"}  # of a time that was taken
DIGITS = 3  # of a number in the table that is shown
SHOWN = ("ms", "iqr_ms", "noisy", "error")  # columns that every table has

Row = dict[str, Any]
"""One row of the table: the function's arguments, what it returned, and what was measured."""


class MeasurementsData(LogData):
    """The rows that `lk.measure` has measured at one moment."""

    added: Sequence[MeasurementsData] = ()
    """Points that were measured afterwards, in the panel; each has a log of its own."""

    @cached_property
    def own_rows(self) -> list[Row]:
        """The rows of its own log."""
        return [row_of(event) for event in self.all("row")]

    @property
    def all_rows(self) -> list[Row]:
        """Its rows; those of a point that was measured again are the last ones."""
        rows = self.own_rows
        for each in self.added:
            again = [] if each.failures else each.points
            rows = [row for row in rows if not any(point.items() <= row.items() for point in again)]
            rows = rows + each.own_rows
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

        table = pandas.DataFrame(self.all_rows)
        own = table.columns.difference(TIMED, sort=False)
        added = [name for name in TIMED if name in table or name in SHOWN]
        return table.reindex(columns=[*own, *added]).astype({"error": object})

    @property
    def mistake(self) -> str | None:
        """The first row's error, where the function raised one in every row; else None.

        A row that was skipped or that ran out of memory is no mistake.
        """
        events = self.all("row")
        if not events or any(event.get("kind") != "mistake" for event in events):
            return None
        return events[0].get("error") or "nobody said why"

    @property
    def failures(self) -> list[Row]:
        """The rows without numbers; `error` of each is the reason."""
        return [row for row in self.all_rows if row["error"] is not None]

    def to_dict(self) -> dict[str, object]:
        """Everything measured, as JSON types."""
        return {**super().to_dict(), "measure": self.name, "rows": list(self.all_rows)}

    def __len__(self) -> int:
        return len(self.all_rows)

    @property
    def what(self) -> str:
        """The function that was measured."""
        return self.name

    @property
    def numbers(self) -> str:
        """How much was measured, in a few words."""
        noisy = sum(bool(row.get("noisy")) for row in self.all_rows)
        counts = {"without numbers": len(self.failures), "noisy": noisy}
        others = [f"{count} {what}" for what, count in counts.items() if count]
        return ", ".join([counted(len(self), "row"), *others])

    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.recorded else ""
        text = f"{mark}{self.name}: {self.numbers}, {self.machine.line}"
        if self.outcome != "finished":
            text += f"\n{self.outcome}: {self.error or ''}"
        return f"{text}\n{self.shown().to_string(index=False)}" if len(self) else text

    def _repr_html_(self) -> str:
        import html

        head, _, _ = repr(self).partition("\n")
        return f"<small>{html.escape(head)}</small>{self.shown().to_html(index=False, border=0)}"

    def shown(self) -> pandas.DataFrame:
        """Return the rows as they are printed: three digits, and no column without a value."""
        table = self.rows.drop(columns="iqr_ms", errors="ignore")
        if "noisy" in table:
            table["noisy"] = ["noisy" if each is True else None for each in table["noisy"]]
        table = table.dropna(axis="columns", how="all").map(short).astype(object)
        return table.fillna({"noisy": ""}).fillna("-")


def row_of(event: Event) -> Row:
    """Return one row of the table from its event in a log."""
    row = dict(event["values"])
    times = [each for each in event.get("seconds") or [] if is_positive(each)]
    if times:
        low, middle, high = np.percentile(times, [25, 50, 75])
        row["ms"] = float(middle * 1e3)
        row["iqr_ms"] = float((high - low) * 1e3)
        row["noisy"] = bool(high - low > NOISY * middle)
        if is_positive(event.get("flops")):
            row["tflops"] = float(event["flops"] / middle / 1e12)
        if is_positive(event.get("bytes")):
            row["gib_s"] = float(event["bytes"] / middle / GIB)
    row["error"] = event.get("error")
    if event.get("kind") == "skipped":
        row["error"] = f"skipped: {event.get('error') or 'nobody said why'}"
    return row


def is_positive(value: object) -> bool:
    """Return whether it is a number above 0 and finite, as times are; a record is anybody's."""
    return isinstance(value, (int, float)) and 0 < value < float("inf")


def short(value: object) -> object:
    """Return a number as it is printed: three digits, or all of them where it is a whole one."""
    if not isinstance(value, float) or not np.isfinite(value):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{DIGITS}g}"
