"""How the rows of `lk.measure` are drawn: what its `x`, `y`, `by` and `title` ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.api import Measurements
from labkit.bench.grid import TIMED
from labkit.view.display import StaticFigure

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from labkit.view.rows_figure import Rows

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

    def figure(self, rows: Measurements) -> Figure | None:
        """Draw the rows; None without an x or a y."""
        axes = self.axes(rows.rows)
        if axes is None:
            return None
        from labkit.view.rows_figure import plot

        return plot(rows, *axes, beside=self.beside, title=self.title_of(rows), log=self.log)

    def picture(self, rows: Measurements) -> StaticFigure | None:
        """Return the figure for a page; None where there is none."""
        drawn = self.figure(rows)
        return drawn and StaticFigure.drawn(drawn)

    def axes(self, rows: pandas.DataFrame) -> tuple[str, str, str | None] | None:
        """Return x, y and by: as asked, else arguments that vary and the best known measure."""
        rows = rows.dropna(axis="columns", how="all")
        y = self.y or next((name for name in BEST_FIRST if name in rows), None)
        own = rows.columns.difference([*TIMED, y], sort=False)
        varying = [name for name in own if rows[name].astype(str).nunique() > 1]
        x, by, *_ = [*varying, None, None] if self.x is None else [self.x, None]
        by = self.by or by
        return (x, y, by if by in rows else None) if {x, y} <= {*rows} else None

    def title_of(self, measured: Measurements) -> str:
        """Return the title.

        What one that is a function raises is told once all rows are there, to whoever writes it;
        not where a reader has added rows that it may not know.
        """
        if isinstance(self.title, str):
            return self.title
        try:
            return self.title(measured.rows)
        except Exception as error:  # whatever the user's function raises
            unfinished = measured.running or measured.added
            return "" if unfinished else f"title: {type(error).__name__}: {error}"
