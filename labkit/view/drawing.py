"""How the rows of `lk.measure` are drawn: what its `x`, `y`, `by` and `title` ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.api import Measurements
from labkit.bench.grid import TIMED
from labkit.results.measurements import MeasurementsData

if TYPE_CHECKING:
    import pandas

    from labkit.view.rows_figure import Rows
    from labkit.view.style import Picture

BEST_FIRST = ("tflops", "gib_s", "ms")  # what is drawn where no `y` was asked for


@dataclass(frozen=True)
class Drawing:
    """A figure of measured rows; what is None is taken from the rows: see `axes`."""

    x: str | None = None
    y: str | None = None
    by: str | None = None
    title: str | Callable[[pandas.DataFrame], str] = ""
    beside: Rows | None = None
    log: str | None = None

    def figure(self, measured: Measurements) -> Picture | None:
        """Draw the rows that are there by now; None without an x or a y."""
        rows = measured.data
        axes = self.axes(rows.rows)
        if axes is None:
            return None
        from labkit.view.rows_figure import plot

        return plot(rows, *axes, beside=self.beside, title=self.title_of(rows), log=self.log)

    def axes(self, rows: pandas.DataFrame) -> tuple[str, str, str | None] | None:
        """Return x, y and by: as asked, else arguments that vary and the best known measure."""
        rows = rows.dropna(axis="columns", how="all")
        y = self.y or next((name for name in BEST_FIRST if name in rows), None)
        own = rows.columns.difference([*TIMED, y], sort=False)
        varying = [name for name in own if rows[name].astype(str).nunique() > 1]
        x, by, *_ = [*varying, None, None] if self.x is None else [self.x, None]
        by = self.by or by
        if x is None or y is None or not {x, y} <= {*rows}:
            return None
        return x, y, by if by in rows else None

    def title_of(self, measured: MeasurementsData) -> str:
        """Return the title; of a function that fails on rows that it does not know, none.

        What it raises is told once all rows are there, to whoever writes it.
        """
        if isinstance(self.title, str):
            return self.title
        try:
            return self.title(measured.rows)
        except Exception as error:  # whatever the user's function raises
            unfinished = measured.running or measured.added
            return "" if unfinished else f"title: {type(error).__name__}: {error}"
