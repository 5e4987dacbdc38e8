"""The panel: controls, a button that starts something, Stop, a picture and a sentence.

Nothing here blocks the kernel: an asyncio task follows what was started, and a thread waits for
processes. All handlers run in the thread that made the panel: JupyterLab 4.4 and later hand the
page's messages to a subshell of the kernel (ipykernel 7), a thread with an event loop of its own,
which ends when the page is reloaded, or to the main thread before the subshell is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import IPython.display
import ipywidgets as widgets
import numpy as np

from labkit.knobs import NUMBERS, Knob, Settings
from labkit.process import launcher
from labkit.results.log_reader import POLL_S, LiveResult
from labkit.view.live import PanelAccess

# The whole numbers that a slider stops at: all up to 16, then powers of two and between
STOPS = sorted({*range(17), *(first << power for power in range(31) for first in (1, 3))})
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
SETTLE_S = 0.1  # s, for a control's last change to arrive: a press may overtake it
# Under the widget, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"

Followed = TypeVar("Followed", bound=LiveResult)


class Panel(widgets.VBox):
    """What every panel has; a kind of panel says what is started (`_once`) and what is shown."""

    PRESS: ClassVar[str]  # the button's name
    INSTEAD: ClassVar[str]  # what to do where no widgets show

    def __init__(self, controls: Mapping[str, Any], *below: widgets.Widget):
        """Put what is shown `below` the controls, and hear of every control that moves."""
        self.controls = dict(controls)
        self.home = running_loop()  # of the thread that made it
        self.run_button = widgets.Button(
            description=self.PRESS, icon="play", button_style="primary"
        )
        self.run_button.on_click(lambda _button: self._at_home(self.start))
        self.stop_button = widgets.Button(description="Stop", icon="stop")
        self.stop_button.on_click(lambda _button: self._at_home(self.stop))
        self.verdict = widgets.HTML()
        self.task: asyncio.Task[None] | None = None  # held, or it might be collected
        self.is_stopping = False
        grid = widgets.GridBox([*self.controls.values()])
        buttons = widgets.HBox([self.run_button, self.stop_button])
        super().__init__([grid, buttons, *below, self.verdict, PanelAccess()])
        self.add_class("labkit-panel")
        for each in self.controls.values():
            each.observe(lambda _change: self._at_home(self._changed), "value")
        self._show_busy(False)

    def _at_home(self, act: Callable[[], object]) -> None:
        """Do it in the panel's own thread: at once from there, else once its loop is free."""
        if self.home is None or self.home is running_loop():
            act()
        else:
            self.home.call_soon_threadsafe(act)

    @property
    def values(self) -> Settings:
        """The controls' values by name."""
        chosen = {name: each.value for name, each in self.controls.items()}
        return {name: None if value == NONE else value for name, value in chosen.items()}

    # Run and Stop: one thing at a time, in a task, so that the kernel stays free

    @property
    def running(self) -> bool:
        """Whether something is going on."""
        return self.task is not None and not self.task.done()

    def start(self) -> None:
        """Start what the controls ask for and follow it, unless something is going on."""
        if self.home is None:
            self.say(f"The buttons need a notebook. {self.INSTEAD}", good=False)
        elif not self.running:
            self.is_stopping = False
            self._show_busy(True)
            self.task = self.home.create_task(self._guarded())

    def stop(self) -> None:
        """Ask what goes on to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self.is_stopping = True

    def close(self) -> None:
        """Stop what is going on and remove the panel."""
        self.stop()
        super().close()

    async def follow(self, run: Followed, draw: Callable[[Followed], object]) -> None:
        """Draw `run` until it ends or is to stop; no process of it is left afterwards."""
        ended = run.stop  # also where drawing breaks
        try:
            while run.data.running and not self.is_stopping:
                draw(run)
                await asyncio.sleep(POLL_S)
            ended = run.stop if self.is_stopping else run.wait
        finally:
            await asyncio.to_thread(ended)

    async def _guarded(self) -> None:
        """Do what was asked for, and say what went wrong: in a task nobody would see it."""
        try:
            await asyncio.sleep(SETTLE_S)
            await self._once()
        except Exception as error:
            self.say(f"{type(error).__name__}: {error}", good=False)
        finally:
            self._show_busy(False)

    async def _once(self) -> None:
        """Do what was asked for, from the press of the button to the last figure."""
        raise NotImplementedError

    # What is shown

    def say(self, text: str, good: bool = True) -> None:
        """Show a sentence of now; in alarm's colour where it is not `good`."""
        self.verdict.value = said(text, "verdict" if good else "verdict alarm")

    def _changed(self) -> None:
        """Say what the controls now ask for."""

    def _show_busy(self, busy: bool, in_cell: bool = False) -> None:
        """Enable what can be pressed; while a cell waits for its run, no press arrives."""
        self.run_button.disabled = busy
        self.stop_button.disabled = in_cell or not busy

    def __repr__(self) -> str:
        return f"labkit panel for {', '.join(self.controls)}"

    def _ipython_display_(self) -> None:
        of_7 = getattr(super(), "_ipython_display_", None)  # of ipywidgets 7, which Colab has
        of_7() if of_7 else IPython.display.display(self._repr_mimebundle_(), raw=True)
        fallback = FALLBACK.format(self.INSTEAD)
        IPython.display.display({"text/html": fallback, "text/plain": ""}, raw=True)
        # The first press is then as quick as the others
        threading.Thread(target=launcher.stand_by, daemon=True).start()


def said(text: str, look: str = "") -> str:
    """Return a sentence as HTML that a screen reader tells when it changes."""
    return f"<div class='labkit-said {look}' role='status'>{html.escape(text)}</div>"


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread; None outside a notebook."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()


def control(knob: Knob, value: Any) -> widgets.Dropdown | widgets.SelectionSlider:
    """Return the widget that suits a knob, set to `value`, unable to leave the knob's range."""
    kind = widgets.SelectionSlider if knob.kind in NUMBERS else widgets.Dropdown
    widget = kind(
        options=[NONE if stop is None else stop for stop in stops_of(knob, value)],
        value=NONE if value is None else value,
        description=knob.name,
        tooltip=f"{knob.help}: {knob.allowed}",
    )
    widget.add_class("labkit-knob")
    widget.add_class(f"labkit-knob-{knob.name}")
    return widget


def stops_of(knob: Knob, value: Any) -> list[Any]:
    """Return the values of a knob that a control offers, among them `value`."""
    stops: list[Any] = [False, True] if knob.kind == "bool" else [*(knob.choices or ())]
    if knob.kind in NUMBERS:
        high = max(knob.reach or knob.high, value or 0)
        stops = [stop for stop in STOPS if knob.low <= stop <= high]
        if knob.kind == "float":
            stops = np.linspace(knob.low, high, 101).round(3).tolist()
        stops = sorted({*stops, value} - {None})
    if knob.auto:
        stops.insert(0, None)
    return stops if value in stops else [*stops, value]
