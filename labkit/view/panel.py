"""The panel: controls generated from knobs, Run, Stop, the live view, a verdict, a comparison.

Nothing here blocks the kernel: an asyncio task follows the run, and a thread waits for processes.
All handlers run in the thread that made the panel: see home_thread.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import threading
from collections.abc import Awaitable, Callable
from typing import ClassVar, Generic, TypeVar, cast

import ipywidgets as widgets
from IPython.display import display
from ipywidgets import Layout

from labkit.knobs import Settings, check_names
from labkit.process import launcher
from labkit.results.launch import launch
from labkit.results.waiting import POLL_S
from labkit.spec import Distributed, Pipeline
from labkit.view.controls import Control, knobs_in_words, shown
from labkit.view.display import StaticFigure, why_no_widgets
from labkit.view.history import History, Ran, file_of
from labkit.view.home_thread import HomeThread
from labkit.view.live import LiveView

Asked = TypeVar("Asked", Pipeline, Distributed)

SETTLE_S = 0.1  # s, for a control's last change to arrive: a press of Run may overtake it
GRID = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
OLD = "labkit-old"  # faint: not of this run
STOP_TIP = "Stop the run; what it measured by then is kept"
CELL_TIP = "A cell waits for this run: interrupt the kernel (■ above) to stop it"
# Under the panel, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"


class Panel(widgets.VBox, Generic[Asked, Ran]):
    """Controls, buttons and what a run showed. `.run` is the last run, `.runs` all.

    A subclass knows what it is a panel of, and what it says of a run.
    """

    terminal = ""  # the call that does the same without a notebook
    warm: ClassVar[bool] = False  # whether the process that is kept ready can start its runs
    _task: asyncio.Task[None] | None = None  # follows the run; held, or it might be collected

    def __init__(self, what: str, controls: dict[str, Control], said: list[widgets.Widget]):
        """Make a panel of `what`; `said` are a subclass's own widgets, above the view."""
        self.controls = controls
        self.runs: list[Ran] = []  # oldest first
        self.opened_with = self.values
        self._stop = asyncio.Event()
        self._moved = ""  # what was changed for the run that goes on, in words
        self._refused = False  # whether the controls do not go together
        self.home = HomeThread()
        self.view = LiveView()
        self.verdict = widgets.HTML()
        self.comparison = widgets.HTML()
        self.figure = widgets.Image(format="png", layout=Layout(max_width="100%", display="none"))
        self.history: History[Ran] = History(self._pinned, self.copies(), self.home, file_of(what))
        self.run_button = self._button("Run", "play", self.start)
        self.run_button.button_style = "primary"
        self.stop_button = self._button("Stop", "stop", self.stop)
        grid = Layout(grid_template_columns=GRID, grid_gap="6px 16px", overflow="hidden")
        knobs = widgets.GridBox(list(controls.values()), layout=grid)
        self.instead = f"Where no widgets show, {self.terminal} leaves a picture and a table."
        self.name = f"labkit panel {what}"
        self.text = f"{self.name}: run this cell in Jupyter to use it. {self.instead}"
        self.missing = why_no_widgets()
        if self.missing:
            self.text += f" No widgets here: {self.missing}."
        self.buttons = widgets.HBox([self.run_button, self.stop_button])
        below = [self.verdict, self.comparison, self.history, self.figure]
        layout = Layout(max_width="900px", overflow="hidden")
        super().__init__([knobs, self.buttons, *said, self.view, *below], layout=layout)
        self.add_class("labkit-panel")
        for control in self.controls.values():
            control.widget.observe(lambda _change: self.home.call(self._changed), "value")
        self._busy(False)
        self.say("Set the knobs and press Run.")
        self._changed()

    def _button(self, name: str, icon: str, press: Callable[[], None]) -> widgets.Button:
        """Return a button whose presses are handled in the panel's own thread."""
        made = widgets.Button(description=name, icon=icon)
        made.on_click(lambda _button: self.home.call(press))
        return made

    # What a subclass knows

    def asked_of(self, values: Settings) -> Asked:
        """Return the spec that these values ask for; raises ValueError where they conflict."""
        raise NotImplementedError

    def launch(self, asked: Asked) -> Ran:
        """Start what is asked."""
        return cast("Ran", launch(asked))

    def verdict_of(self, run: Ran) -> str:
        """Say what limits a run."""
        return str(run.diagnose())

    def difference(self, run: Ran, before: Ran | None, name: str) -> list[str]:
        """Say what was changed since `before`, which is called `name`, and what it brought."""
        raise NotImplementedError

    def copies(self) -> dict[str, Callable[[], str]]:
        """Return what makes the texts that can be copied, by name."""
        return {}

    def picture(self, run: Ran) -> StaticFigure | None:
        """Return what is drawn below the view, which of a single run is the picture itself."""
        return None

    def forecast(self, asked: Asked) -> None:
        """Show what is expected of a spec."""

    def settle(self, run: Ran) -> None:
        """Show how right that forecast was."""

    # What is asked, and what has run

    @property
    def values(self) -> Settings:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def asked(self) -> Asked:
        """The spec that Run would start; raises ValueError where the controls conflict."""
        return self.asked_of(self.values)

    @property
    def run(self) -> Ran | None:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._task is not None and not self._task.done()

    def measured(self, asked: Asked | None = None) -> Ran | None:
        """Return the last run that has numbers, or that of what was `asked`; None without one."""
        for run in reversed(self.runs):
            if not run.running and run.throughput is not None and asked in (None, run.asked):
                return run
        return None

    # Run and Stop

    def start(self) -> None:
        """Start what is `asked` and follow it, unless a run is going on."""
        self._start(self._session)

    def _start(self, session: Callable[[], Awaitable[None]]) -> None:
        if self.running or self._refused:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.say(f"The panel needs a notebook: here, use {self.terminal}.", good=False)
            return
        self._stop = asyncio.Event()
        self._busy(True)
        self._task = loop.create_task(self._guarded(session))

    def stop(self) -> None:
        """Ask the run to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self._stop.set()

    def close(self) -> None:
        """Stop what is running and remove the panel."""
        self.stop()
        super().close()

    def run_of(self, **values: int | float | str | None) -> Ran:
        """Return the last run with the controls as the panel opened, but for `values`.

        Where Run was not pressed for it, it is measured now, in this panel. Raises ValueError on
        a bad value.
        """
        check_names(values, self.controls)
        wanted = self.opened_with | values
        if self.running and self.run:
            self.run.wait()
        known = self.measured(self.asked_of(wanted))
        if known is not None:
            return known
        for name, value in wanted.items():
            self.controls[name].value = value
        self._busy(True, in_cell=True)
        try:
            run, before = self._begin()
            run.wait(each=self.view.follow)
            self._show(run, before)
        finally:
            self._busy(False)
        return run

    async def _session(self) -> None:
        """Run once, from the press of the button to the last figure."""
        await self._pause(SETTLE_S)
        run, before = self._begin()
        await self._follow(run)
        self._show(run, before)

    async def _guarded(self, session: Callable[[], Awaitable[None]]) -> None:
        """Do what a button asks, and say what went wrong: in a task nobody would see it."""
        try:
            await session()
        except Exception as error:
            plain = isinstance(error, (ValueError, OSError, RuntimeError))
            self.say(str(error) if plain else f"{type(error).__name__}: {error}", good=False)
        finally:
            self._busy(False)

    def _begin(self) -> tuple[Ran, Ran | None]:
        """Start what is asked; return the run and the one to compare it with."""
        asked = self.asked
        before = self.history.pinned[1] if self.history.pinned else self.measured()
        self.forecast(asked)
        self.view.show_before(before)
        run = self.launch(asked)
        self.runs.append(run)
        moved = []
        for name, value in self.values.items():
            if value != self.opened_with[name]:
                moved.append(f"{name} {shown(value)}")
        self._moved = ", ".join(moved) or "as it opened"
        return run, before

    async def _follow(self, run: Ran) -> None:
        """Draw `run` until it ends or Stop is pressed; no process of it is left afterwards."""
        try:
            while run.running and not self._stop.is_set():
                self.view.follow(run)
                await self._pause(POLL_S)
        except BaseException:
            self._stop.set()
            raise
        finally:
            await asyncio.to_thread(self._end, run)

    def _end(self, run: Ran) -> None:
        """Stop a run where Stop was pressed, else wait for its last process."""
        if self._stop.is_set():
            run.stop()
        else:
            run.wait()

    async def _pause(self, seconds: float) -> None:
        """Let the kernel do other things for so long, or until Stop is pressed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # What is shown

    def say(self, text: str, good: bool = True) -> None:
        """Show one sentence under the view; in alarm's colour where it is not `good`."""
        self.verdict.remove_class(OLD)
        look = "labkit-said verdict" if good else "labkit-said verdict alarm"
        self.verdict.value = f"<div class='{look}' role='status'>{html.escape(text)}</div>"

    def _show(self, run: Ran, before: Ran | None) -> None:
        """Show how `run` ended, what differs from `before`, and the figure of both."""
        self.view.finish(run)
        measured = run.throughput is not None
        if run.error or not measured:
            said = run.error or f"{run.outcome.capitalize()}: too short to tell."
            self.say(said, good=not run.error)
        else:
            self.say(self.verdict_of(run))
        self._say_difference(run, before if measured else None)
        drawn = self.picture(run) if measured else None
        if drawn is not None:
            self.figure.value = drawn.png
            self.figure.layout.width = f"{drawn.width}px"
        self.figure.layout.display = None if drawn else "none"
        limit = run.diagnose().bottleneck if measured else run.outcome
        self.history.add(run, self._moved, limit)
        if measured:
            self.settle(run)
        elif not self._refused:
            self.forecast(self.asked)

    def _say_difference(self, run: Ran, before: Ran | None) -> None:
        """Say in what `before` and `run` differ."""
        name = "the run before"
        if self.history.pinned:
            name = f"the pinned run ({self.history.pinned[0]})"
        text = html.escape("\n".join(self.difference(run, before, name)))
        self.comparison.value = f"<div class='labkit-said'>{text}</div>"

    def _pinned(self) -> None:
        """Compare with the run that the list pins, from now on."""
        pinned = self.history.pinned[1] if self.history.pinned else None
        run = self.measured()
        self.view.show_before(pinned)
        if run is not None and run is not pinned and not self.running:
            self._say_difference(run, pinned)

    def _busy(self, busy: bool, in_cell: bool = False) -> None:
        """Enable what can be pressed; while a cell waits for its run, no press arrives."""
        self._allow(not busy and not self._refused)
        self.stop_button.disabled = in_cell or not busy
        self.stop_button.tooltip = CELL_TIP if in_cell else STOP_TIP
        for old in (self.verdict, self.comparison, self.figure):
            (old.add_class if busy else old.remove_class)(OLD)

    def _allow(self, allowed: bool) -> None:
        """Enable or disable every button but Stop."""
        for button in self.buttons.children:
            if button is not self.stop_button:
                button.disabled = not allowed

    def _changed(self) -> None:
        """Say at once what the controls would bring, or where they do not go together."""
        was_refused = self._refused
        try:
            asked = self.asked
        except ValueError as error:
            self._refuse(knobs_in_words(str(error)))
            return
        self._refuse("")
        if was_refused:
            self.say("The controls go together again: press Run.")
        if not self.running:
            self.forecast(asked)

    def _refuse(self, why: str) -> None:
        """Let nothing be started, and say why; with "", allow it again."""
        self._refused = bool(why)
        self.run_button.tooltip = why
        self._allow(not self._refused and not self.running)
        if why:
            self.say(why, good=False)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: dict) -> dict:
        shown = None if self.missing else super()._repr_mimebundle_(**kwargs)
        text = self.text if self.missing else self.name  # what to do is in the fallback below it
        return (shown or {}) | {"text/plain": text}

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        if self.missing is None:
            fallback = FALLBACK.format(self.instead)
            display({"text/html": fallback, "text/plain": ""}, raw=True)
        if self.warm:  # the first press of Run is then as quick as the others
            threading.Thread(target=launcher.stand_by, daemon=True).start()
