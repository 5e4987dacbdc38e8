"""The parts of a panel: its knobs and buttons, and what it says and draws of a run."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

import ipywidgets as widgets
from ipywidgets import Layout

from labkit.view.controls import Control
from labkit.view.home_thread import HomeThread

GRID = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
OLD = "labkit-old"  # faint: not of this run
STOP_TIP = "Stop; what it measured by then is kept"
CELL_TIP = "A cell waits for this: interrupt the kernel (■ above) to stop it"


def grid_of(controls: Iterable[Control]) -> widgets.GridBox:
    """Return controls in as many columns as there is room for."""
    layout = Layout(grid_template_columns=GRID, grid_gap="6px 16px", overflow="hidden")
    return widgets.GridBox(list(controls), layout=layout)


def fade(shown: widgets.DOMWidget, is_old: bool) -> None:
    """Make what is shown of an older run faint, or clear again."""
    if is_old:
        shown.add_class(OLD)
    else:
        shown.remove_class(OLD)


class Buttons(widgets.HBox):
    """Run (or whatever it is called) and Stop."""

    def __init__(
        self, home: HomeThread, name: str, run: Callable[[], None], stop: Callable[[], None]
    ):
        """Presses are handled in the thread of `home`; `name` is that of the first button."""
        self.home = home
        self.run = self._made(name, "play", run)
        self.run.button_style = "primary"
        self.stop = self._made("Stop", "stop", stop)
        super().__init__([self.run, self.stop])

    def _made(self, name: str, icon: str, press: Callable[[], None]) -> widgets.Button:
        made = widgets.Button(description=name, icon=icon)
        made.on_click(lambda _button: self.home.call(press))
        return made

    def allow_stop(self, allowed: bool, in_cell: bool) -> None:
        """Enable or disable Stop; while a cell waits for its run, no press arrives."""
        self.stop.disabled = in_cell or not allowed
        self.stop.tooltip = CELL_TIP if in_cell else STOP_TIP


class Sentence(widgets.HTML):
    """One sentence under the view: what limits a run, or what is to be done."""

    def say(self, text: str, good: bool = True) -> None:
        """Show a sentence of now; in alarm's colour where it is not `good`."""
        fade(self, False)
        look = "labkit-said verdict" if good else "labkit-said verdict alarm"
        self.value = f"<div class='{look}' role='status'>{html.escape(text)}</div>"


class Comparison(widgets.HTML):
    """What differs from another run."""

    def say(self, lines: Sequence[str]) -> None:
        """Show these lines."""
        self.value = f"<div class='labkit-said'>{html.escape(chr(10).join(lines))}</div>"
