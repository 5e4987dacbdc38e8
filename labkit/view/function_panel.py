"""The panel that `lk.measure` shows: the user's function, its grid's axes as controls, Measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from labkit.api import Measurements, launch
from labkit.bench.grid import Grid
from labkit.knobs import Knob
from labkit.results.measurements import short
from labkit.results.payload import Source
from labkit.view.controls import Control, shown
from labkit.view.panel import Panel
from labkit.view.rows_figure import plot_measured
from labkit.view.style import Picture

REDRAW_S = 1.0  # s, between two drawings of the rows so far
IN_PLACE = "Where no widgets show, change the values in the cell and run it again."
FURTHER = 2  # times an axis's largest value is how far its control goes


class FunctionPanel(Panel):
    """Measures one more point of a function at a press, and draws it among those of its grid."""

    def __init__(self, grid: Grid, source: Source, drawing: dict, measured: Measurements):
        """Show the rows of `measured`, which a cell waits for; `drawing` as of `plot_measured`."""
        controls = {}
        for name, values in grid.values.items():
            knob = knob_of(name, values, grid.name)
            if knob is not None:
                controls[name] = Control(knob, knob.default)
        super().__init__(f"labkit panel of {grid.name}", IN_PLACE, controls, "Measure")
        self.grid = grid
        self.source = source
        self.drawing = drawing
        self.measured = measured  # the grid's rows, and those that were added
        self.picture = widgets.HTML()
        self.due = time.monotonic() + REDRAW_S  # when to draw again
        self.add_class("labkit-function")
        self.assemble([self.picture], [])
        self._show_busy(True, in_cell=True)
        display(self)

    def tell(self, said: str) -> None:
        """Say how far it is, and draw rows that came, once a second at most."""
        self.say(said)
        if time.monotonic() > self.due:
            self.draw()

    def settle(self, said: str) -> None:
        """Show all rows and what is `said`, store the picture, and hand over the controls."""
        drawn = self.draw()
        self.say(f"{said}. Set other values and press Measure, or edit the cell.")
        if drawn:
            display(drawn)  # for the file
        self._show_busy(False)

    def draw(self) -> Picture | None:
        """Draw the rows as far as they are there, also in words; return the picture."""
        rows = self.measured.data
        drawn = plot_measured(rows, **self.drawing)
        if drawn:
            self.picture.value = drawn.html(repr(rows))
        self.due = time.monotonic() + REDRAW_S
        return drawn

    async def _once(self) -> None:
        """Measure the point that the controls ask for, and add it to the picture and the rows."""
        values = {name: values[0] for name, values in self.grid.values.items()} | self.values
        what = ", ".join(f"{name} {shown(values[name])}" for name in self.controls)
        self.say(f"Measuring {what} …")
        point = replace(self.grid, values={name: [value] for name, value in values.items()})
        added = launch(point, source=self.source)
        await self.follow(added, lambda _added: None)
        rows = added.data.all_rows
        if rows:
            self.measured.add(added)
            self.draw()
        failed = [row["error"] for row in rows if row["error"]]
        took = [f"{short(row['ms'])} ms" for row in rows if row.get("ms")]
        why = added.error or f"{added.outcome} before it was measured"
        told = ", ".join(failed or took or ["measured"]) if rows else why
        self.say(f"{what}: {told}", good=bool(rows) and not failed)


def knob_of(name: str, values: Sequence[Any], function: str) -> Knob | None:
    """Return an axis of a grid as a knob: numbers are free within a range, others are choices.

    None where its values cannot be listed, such as tensors.
    """
    told = f"an argument of {function}()"
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = "float" if float in kinds else "int"
        low = min(*values, FURTHER * min(values), 1 if kind == "int" else 0)
        return Knob(name, kind, values[0], told, low=low, high=max(FURTHER * max(values), 1))
    if kinds <= {str, int, float, bool, type(None)}:
        return Knob(name, "str", values[0], told, choices=tuple(values))
    return None
