"""The panel: controls, a button that starts something, Stop, a picture and a sentence.

Nothing here blocks the kernel: an asyncio task follows what was started, and a thread waits for
processes. All handlers run in the thread that made the panel: see home_thread.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import ipywidgets as widgets

from labkit.knobs import Settings
from labkit.process import launcher
from labkit.view.controls import Control
from labkit.view.home_thread import HomeThread
from labkit.view.panel_access import PanelAccess
from labkit.view.panel_parts import Buttons, Sentence, fade
from labkit.view.panel_session import Session
from labkit.view.widget_or_text import WidgetOrText


class Panel(WidgetOrText):
    """What every panel has; a kind of panel says what is started (`_once`) and what is shown."""

    def __init__(self, name: str, instead: str, controls: Mapping[str, Control], press: str):
        """`name` and `instead` are told where no widgets show; `press` is the button's name."""
        super().__init__(name, instead, ())
        self.controls = dict(controls)
        self.refused = False  # whether the controls do not go together
        self.home = HomeThread()
        self.buttons = Buttons(self.home, press, self.start, self.stop)
        self.run_button = self.buttons.run
        self.stop_button = self.buttons.stop
        self.verdict = Sentence()
        self.session = Session(self._show_busy, lambda why: self.verdict.say(why, good=False))
        self.add_class("labkit-panel")

    def assemble(self, parts: Iterable[widgets.Widget]) -> None:
        """Put the parts below each other, and hear of every control that moves."""
        self.children = [*parts, PanelAccess()]
        for control in self.controls.values():
            control.widget.observe(lambda _change: self.home.call(self._changed), "value")
        self._show_busy(False)

    @property
    def values(self) -> Settings:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def running(self) -> bool:
        """Whether something is going on."""
        return self.session.running

    def start(self) -> None:
        """Start what the controls ask for and follow it, unless something is going on."""
        if self.running or self.refused:
            return
        try:
            self.session.start(self._once)
        except RuntimeError:
            self.verdict.say(f"The buttons need a notebook. {self.instead}", good=False)

    def stop(self) -> None:
        """Ask what goes on to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self.session.stop()

    def close(self) -> None:
        """Stop what is going on and remove the panel."""
        self.stop()
        super().close()

    async def _once(self) -> None:
        """Do what was asked for, from the press of the button to the last figure."""
        raise NotImplementedError

    def _changed(self) -> None:
        """Say what the controls now ask for."""

    @property
    def _old_when_busy(self) -> tuple[widgets.DOMWidget, ...]:
        """What is made faint while something goes on: it is of what was before."""
        return ()

    def _show_busy(self, busy: bool, in_cell: bool = False) -> None:
        """Enable what can be pressed, and make faint what is not of what goes on."""
        self.run_button.disabled = busy or self.refused
        self.buttons.allow_stop(busy, in_cell)
        for part in self._old_when_busy:
            fade(part, busy)

    def _ipython_display_(self) -> None:
        super()._ipython_display_()
        # The first press is then as quick as the others
        threading.Thread(target=launcher.stand_by, daemon=True).start()
