"""The panel that `lk.measure` shows: the user's function, its grid's axes as controls, Measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import ipywidgets as widgets
from IPython.display import DisplayHandle, display

from labkit.bench.grid import Grid
from labkit.knobs import Knob
from labkit.results.launch import launch
from labkit.results.measurements import Measurements
from labkit.view.controls import Control, shown
from labkit.view.display import StaticFigure
from labkit.view.drawing import Drawing
from labkit.view.function_payload import FunctionPayload
from labkit.view.panel import Panel
from labkit.view.panel_parts import grid_of

REDRAW_S = 1.0  # s, between two drawings of the rows so far
IN_PLACE = "Where no widgets show, change the values in the cell and run it again."
FURTHER = 2  # times an axis's largest value is how far its control goes


class FunctionPanel(Panel):
    """Measures one more point of a function at a press, and draws it among those of its grid."""

    def __init__(self, grid: Grid, source: FunctionPayload, drawing: Drawing):
        controls = {}
        for name, values in grid.values.items():
            knob = knob_of(name, values, grid.name)
            if knob is not None:
                controls[name] = Control(knob, knob.default)
        super().__init__(f"labkit panel of {grid.name}", IN_PLACE, controls, "Measure")
        self.grid = grid
        self.source = source
        self.drawing = drawing
        self.measured: Measurements | None = None  # the grid's rows, and those that were added
        self.earlier: Measurements | None = None  # those of the cell before it was edited
        self.picture = widgets.HTML()
        self.stored: DisplayHandle | None = None  # of the picture below, which a file keeps
        self.due = time.monotonic() + REDRAW_S  # when to draw again
        self.add_class("labkit-function")
        self.assemble([self.picture, grid_of(self.controls.values()), self.buttons, self.verdict])

    def follow(self, measured: Measurements, earlier: Measurements | None) -> None:
        """Begin to show rows, which a cell waits for."""
        self.measured = measured
        self.earlier = earlier
        self._show_busy(True, in_cell=True)
        display(self)

    def tell(self, said: str) -> None:
        """Say how far it is, and draw rows that came, once a second at most."""
        self.verdict.say(said)
        now = time.monotonic()
        if self.measured and now > self.due:
            self.draw()
            self.due = now + REDRAW_S

    def settle(self, said: str) -> None:
        """Show all rows and what is `said`, store the picture, and hand over the controls."""
        drawn = self.draw()
        self.verdict.say(f"{said}. Set other values and press Measure, or edit the cell.")
        if drawn:
            self.stored = display(drawn, display_id=True)
        self._show_busy(False)

    def draw(self) -> StaticFigure | None:
        """Draw the rows as far as they are there; return the picture."""
        assert self.measured is not None
        drawn = self.drawing.picture(self.measured, self.earlier)
        if drawn:
            self.picture.value = drawn.html(self.in_words)
        return drawn

    @property
    def in_words(self) -> str:
        """The picture for who cannot see it: its title, its rows, and those before the edit."""
        assert self.measured is not None
        lines = [self.drawing.title_of(self.measured), repr(self.measured)]
        if self.earlier is not None:
            lines.append(f"Before the change: {self.earlier!r}")
        return "\n".join(lines)

    async def _once(self) -> None:
        """Measure the point that the controls ask for, and add it to the picture and the rows."""
        assert self.measured is not None
        values = {name: values[0] for name, values in self.grid.values.items()} | self.values
        what = ", ".join(f"{name} {shown(values[name])}" for name in self.controls)
        self.verdict.say(f"Measuring {what} …")
        point = replace(self.grid, values={name: [value] for name, value in values.items()})
        added = launch(point, source=self.source)
        await self.session.follow(added, lambda _added: None)
        if not len(added):
            why = added.error or f"{added.outcome} before it was measured"
            self.verdict.say(f"{what}: {why}", good=False)
            return
        self.measured.add(added)
        drawn = self.draw()
        if drawn and self.stored is not None:
            self.stored.update(drawn)
        self.verdict.say(f"{what}: {added.in_words}", good=not added.failures)


def knob_of(name: str, values: Sequence[object], function: str) -> Knob | None:
    """Return an axis of a grid as a knob: numbers are free within a range, others are choices.

    None where its values cannot be listed, such as tensors.
    """
    told = f"an argument of {function}()"
    if all(type(value) is bool for value in values):
        return Knob(name, "bool", values[0], told)
    numbers = [value for value in values if type(value) is int or type(value) is float]
    if len(numbers) == len(values):
        kind = "float" if float in map(type, values) else "int"
        low = min(numbers)
        high = max(numbers)
        lowest = FURTHER * low if low < 0 else min(low, 1 if kind == "int" else 0)
        return Knob(name, kind, values[0], told, low=lowest, high=max(FURTHER * high, 1))
    if all(isinstance(value, (str, int, float, bool, type(None))) for value in values):
        return Knob(name, "str", values[0], told, choices=tuple(values))
    return None
