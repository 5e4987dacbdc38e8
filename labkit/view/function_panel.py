"""The panel that `lk.measure` shows: the user's function, its grid's axes as controls, Measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from labkit.api import Measurements, launch
from labkit.bench.grid import Grid
from labkit.knobs import Knob
from labkit.results.measurements import short
from labkit.results.payload import Source
from labkit.view.controls import Control, shown
from labkit.view.display import StaticFigure
from labkit.view.drawing import Drawing
from labkit.view.panel import Panel

REDRAW_S = 1.0  # s, between two drawings of the rows so far
IN_PLACE = "Where no widgets show, change the values in the cell and run it again."
FURTHER = 2  # times an axis's largest value is how far its control goes


class FunctionPanel(Panel):
    """Measures one more point of a function at a press, and draws it among those of its grid."""

    def __init__(
        self,
        grid: Grid,
        source: Source,
        drawing: Drawing,
        measured: Measurements,
    ):
        """Show the rows of `measured`, which a cell waits for."""
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
        self.stored: DisplayHandle | None = None  # of the picture below, which a file keeps
        self.due = time.monotonic() + REDRAW_S  # when to draw again
        self.add_class("labkit-function")
        self.assemble([self.picture], [])
        self._show_busy(True, in_cell=True)
        display(self)

    def tell(self, said: str) -> None:
        """Say how far it is, and draw rows that came, once a second at most."""
        self.say(said)
        now = time.monotonic()
        if now > self.due:
            self.draw()
            self.due = now + REDRAW_S

    def settle(self, said: str) -> None:
        """Show all rows and what is `said`, store the picture, and hand over the controls."""
        drawn = self.draw()
        self.say(f"{said}. Set other values and press Measure, or edit the cell.")
        if drawn:
            self.stored = display(drawn, display_id=True)
        self._show_busy(False)

    def draw(self) -> StaticFigure | None:
        """Draw the rows as far as they are there, also in words; return the picture."""
        drawn = self.drawing.picture(self.measured)
        if drawn:
            words = f"{self.drawing.title_of(self.measured)}\n{self.measured!r}"
            self.picture.value = drawn.html(words)
        return drawn

    async def _once(self) -> None:
        """Measure the point that the controls ask for, and add it to the picture and the rows."""
        values = {name: values[0] for name, values in self.grid.values.items()} | self.values
        what = ", ".join(f"{name} {shown(values[name])}" for name in self.controls)
        self.say(f"Measuring {what} …")
        point = replace(self.grid, values={name: [value] for name, value in values.items()})
        added = launch(point, source=self.source)
        await self.follow(added, lambda _added: None)
        if not len(added):
            why = added.error or f"{added.outcome} before it was measured"
            self.say(f"{what}: {why}", good=False)
            return
        self.measured.add(added)
        drawn = self.draw()
        if drawn and self.stored is not None:
            self.stored.update(drawn)
        failed = [row["error"] for row in added.failures]
        took = [f"{short(ms)} ms" for ms in added.rows["ms"].dropna()]
        self.say(f"{what}: {', '.join(failed or took) or 'measured'}", good=not failed)


def knob_of(name: str, values: Sequence[Any], function: str) -> Knob | None:
    """Return an axis of a grid as a knob: numbers are free within a range, others are choices.

    None where its values cannot be listed, such as tensors.
    """
    told = f"an argument of {function}()"
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = "float" if float in kinds else "int"
        low = min(min(values), FURTHER * min(values), 1 if kind == "int" else 0)
        return Knob(name, kind, values[0], told, low=low, high=max(FURTHER * max(values), 1))
    if kinds <= {str, int, float, bool, type(None)}:
        return Knob(name, "str", values[0], told, choices=tuple(values))
    return None
