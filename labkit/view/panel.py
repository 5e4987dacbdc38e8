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
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import IPython.display
import ipywidgets as widgets
from ipywidgets import Layout

from labkit.knobs import Settings
from labkit.process import launcher
from labkit.results.log_reader import POLL_S, LiveResult
from labkit.view.controls import Control
from labkit.view.display import why_no_widgets
from labkit.view.live import PanelAccess

SETTLE_S = 0.1  # s, for a control's last change to arrive: a press may overtake it
GRID = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
# Under the widget, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"

Followed = TypeVar("Followed", bound=LiveResult)


class Panel(widgets.VBox):
    """What every panel has; a kind of panel says what is started (`_once`) and what is shown.

    Where a front end shows no widgets: a text that says what it is, why not and what to do instead.
    """

    def __init__(self, name: str, instead: str, controls: Mapping[str, Control], press: str):
        """`name` and `instead` are told where no widgets show; `press` is the button's name."""
        super().__init__(layout=Layout(max_width="900px", overflow="hidden"))
        self.name = name
        self.instead = instead
        self.missing = why_no_widgets()  # None where widgets may show
        self.controls = dict(controls)
        self.refused = False  # whether the controls do not go together
        self.home_id = threading.get_ident()  # of the thread that made it
        self.home_loop = running_loop()
        self.run_button = widgets.Button(description=press, icon="play", button_style="primary")
        self.run_button.on_click(lambda _button: self._at_home(self.start))
        self.stop_button = widgets.Button(description="Stop", icon="stop")
        self.stop_button.on_click(lambda _button: self._at_home(self.stop))
        self.verdict = widgets.HTML()
        self.task: asyncio.Task[None] | None = None  # held, or it might be collected
        self._stop = asyncio.Event()
        self.add_class("labkit-panel")

    def assemble(self, above: Iterable[widgets.Widget], below: Iterable[widgets.Widget]) -> None:
        """Put the parts above and below the controls, and hear of every control that moves."""
        columns = Layout(grid_template_columns=GRID, grid_gap="6px 16px", overflow="hidden")
        grid = widgets.GridBox([*self.controls.values()], layout=columns)
        buttons = widgets.HBox([self.run_button, self.stop_button])
        self.children = [*above, grid, buttons, *below, self.verdict, PanelAccess()]
        for control in self.controls.values():
            control.widget.observe(lambda _change: self._at_home(self._changed), "value")
        self._show_busy(False)

    def _at_home(self, act: Callable[[], object]) -> None:
        """Do it in the panel's own thread: at once from there, else once its loop is free."""
        if self.home_loop is None or threading.get_ident() == self.home_id:
            act()
        else:
            self.home_loop.call_soon_threadsafe(act)

    @property
    def values(self) -> Settings:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    # Run and Stop: one thing at a time, in a task, so that the kernel stays free

    @property
    def running(self) -> bool:
        """Whether something is going on."""
        return self.task is not None and not self.task.done()

    def start(self) -> None:
        """Start what the controls ask for and follow it, unless something is going on."""
        if self.running or self.refused:
            return
        loop = running_loop()
        if loop is None:
            self.say(f"The buttons need a notebook. {self.instead}", good=False)
            return
        self._stop.clear()
        self._show_busy(True)
        self.task = loop.create_task(self._guarded())

    def stop(self) -> None:
        """Ask what goes on to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self._stop.set()

    def close(self) -> None:
        """Stop what is going on and remove the panel."""
        self.stop()
        super().close()

    async def _pause(self, seconds: float) -> None:
        """Let the kernel do other things for so long, or until Stop was pressed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def follow(self, run: Followed, draw: Callable[[Followed], object]) -> None:
        """Draw `run` until it ends or is to stop; no process of it is left afterwards."""
        ended = run.stop  # also where drawing breaks
        try:
            while run.data.running and not self._stop.is_set():
                draw(run)
                await self._pause(POLL_S)
            ended = run.stop if self._stop.is_set() else run.wait
        finally:
            await asyncio.to_thread(ended)

    async def _guarded(self) -> None:
        """Do what was asked for, and say what went wrong: in a task nobody would see it."""
        try:
            await self._pause(SETTLE_S)
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
        self.run_button.disabled = busy or self.refused
        self.stop_button.disabled = in_cell or not busy

    def __repr__(self) -> str:
        why = f" No widgets here: {self.missing}." if self.missing else ""
        return f"{self.name}: run this cell in Jupyter to use it. {self.instead}{why}"

    def _repr_mimebundle_(self, **kwargs: dict) -> dict:
        if self.missing:
            return {"text/plain": repr(self)}
        widget = super()._repr_mimebundle_(**kwargs) or {}
        return widget | {"text/plain": self.name}  # what to do is in the fallback below it

    def _ipython_display_(self) -> None:
        IPython.display.display(self._repr_mimebundle_(), raw=True)
        if self.missing is None:
            fallback = FALLBACK.format(self.instead)
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
