"""The panel: controls generated from knobs, Run, Stop, the live view, a verdict, a comparison.

Nothing here blocks the kernel: an asyncio task follows the run, and a thread waits for processes.
All handlers run in the thread that made the panel: see home_thread.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Generic, TypeVar, cast

import ipywidgets as widgets

from labkit.knobs import Settings, check_names
from labkit.process import launcher
from labkit.results.hardware import check_device
from labkit.results.launch import launch
from labkit.spec import Distributed, Pipeline
from labkit.view.clipboard import Clipboard
from labkit.view.controls import Control, knobs_in_words, shown
from labkit.view.display import StaticFigure
from labkit.view.history import History, Ran
from labkit.view.home_thread import HomeThread
from labkit.view.live import LiveView
from labkit.view.panel_access import PanelAccess
from labkit.view.panel_parts import Buttons, Comparison, Picture, Sentence, fade, grid_of
from labkit.view.panel_session import Session
from labkit.view.widget_or_text import WidgetOrText

Asked = TypeVar("Asked", Pipeline, Distributed)

SETTLE_S = 0.1  # s, for a control's last change to arrive: a press of Run may overtake it


class Panel(WidgetOrText, Generic[Asked, Ran]):
    """Controls, buttons and what a run showed. `.run` is the last run, `.runs` all.

    A subclass knows what it is a panel of, and what it says of a run.
    """

    terminal = ""  # the call that does the same without a notebook
    warm: ClassVar[bool] = False  # whether the process that is kept ready can start its runs

    def __init__(
        self, what: str, controls: dict[str, Control], more: Sequence[widgets.Widget] = ()
    ):
        """Make a panel of `what`, with `more` widgets of a subclass above the view."""
        self.controls = controls
        self.runs: list[Ran] = []  # oldest first
        self.opened_with = self.values
        self._moved = ""  # what was changed for the run that goes on, in words
        self._refused = False  # whether the controls do not go together
        self.home = HomeThread()
        self.buttons = Buttons(self.home, self.start, self.stop)
        self.run_button = self.buttons.run
        self.stop_button = self.buttons.stop
        self.view = LiveView()
        self.verdict = Sentence()
        self.comparison = Comparison()
        self.history: History[Ran] = History(self._pinned, self.home)
        self.clipboard = Clipboard(self.copies(), self.home)
        self.figure = Picture()
        self.session = Session(self._show_busy, lambda why: self.verdict.say(why, good=False))
        parts = [grid_of(controls.values()), self.buttons, *more, self.view, self.verdict]
        parts += [self.comparison, self.history, self.clipboard, self.figure, PanelAccess()]
        instead = f"Where no widgets show, {self.terminal} leaves a picture and a table."
        super().__init__(f"labkit panel {what}", instead, parts)
        self.add_class("labkit-panel")
        for control in self.controls.values():
            control.widget.observe(lambda _change: self.home.call(self._changed), "value")
        self._show_busy(False)
        self.verdict.say("Set the knobs and press Run.")
        self._changed()

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
        return self.session.running

    def measured(self, asked: Asked | None = None) -> Ran | None:
        """Return the last run that has numbers, or that of what was `asked`; None without one."""
        for run in reversed(self.runs):
            if not run.running and run.throughput is not None and asked in (None, run.asked):
                return run
        return None

    # Run and Stop

    def start(self) -> None:
        """Start what is `asked` and follow it, unless a run is going on."""
        self._start(self._run_once)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        if self.running or self._refused:
            return
        try:
            self.session.start(work)
        except RuntimeError:
            instead = f"The panel needs a notebook: here, use {self.terminal}."
            self.verdict.say(instead, good=False)

    def stop(self) -> None:
        """Ask the run to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self.session.stop()

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
        self._show_busy(True, in_cell=True)
        try:
            run, before = self._begin()
            run.wait(each=self.view.follow)
            self._show(run, before)
        finally:
            self._show_busy(False)
        return run

    async def _run_once(self) -> None:
        """Run, from the press of the button to the last figure."""
        await self.session.pause(SETTLE_S)
        device = self.asked.to_spec()["pipeline"]["device"]
        await asyncio.to_thread(check_device, device)  # or the kernel waits for torch
        run, before = self._begin()
        await self.session.follow(run, self.view.follow)
        self._show(run, before)

    def _begin(self) -> tuple[Ran, Ran | None]:
        """Start what is asked; return the run and the one before it that has numbers."""
        asked = self.asked
        before = self.measured()
        self.forecast(asked)
        self.view.show_before(self.history.against(before)[1])
        run = self.launch(asked)
        self.runs.append(run)
        moved = []
        for name, value in self.values.items():
            if value != self.opened_with[name]:
                moved.append(f"{name} {shown(value)}")
        self._moved = ", ".join(moved) or "as it opened"
        return run, before

    # What is shown

    def _show(self, run: Ran, before: Ran | None) -> None:
        """Show how `run` ended, what differs from another, and the figure of both."""
        self.view.finish(run)
        measured = run.throughput is not None
        if run.error:
            self.verdict.say(run.error, good=False)
        elif measured:
            self.verdict.say(self.verdict_of(run))
        else:
            self.verdict.say(f"{run.outcome.capitalize()}: too short to tell.")
        self._say_difference(run, before)
        self.figure.draw(self.picture(run) if measured else None)
        limit = run.diagnose().bottleneck if measured else run.outcome
        self.history.add(run, self._moved, limit)
        if measured:
            self.settle(run)
        elif not self._refused:
            self.forecast(self.asked)

    def _say_difference(self, run: Ran, before: Ran | None) -> None:
        """Say in what `run` differs from the pinned one, else from the one `before` it."""
        name, other = self.history.against(before)
        lines = self.difference(run, None if run.throughput is None else other, name)
        self.comparison.say(lines)

    def _pinned(self) -> None:
        """Compare with the run that the list pins, from now on."""
        _, pinned = self.history.against(None)
        run = self.measured()
        self.view.show_before(pinned)
        if run is not None and run is not pinned and not self.running:
            self._say_difference(run, None)

    def _show_busy(self, busy: bool, in_cell: bool = False) -> None:
        """Enable what can be pressed, and make faint what is not of the run that goes on."""
        self.buttons.allow_start(not busy and not self._refused)
        self.buttons.allow_stop(busy, in_cell)
        for part in (self.verdict, self.comparison, self.figure):
            fade(part, busy)

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
            self.verdict.say("The controls go together again: press Run.")
        if not self.running:
            self.forecast(asked)

    def _refuse(self, why: str) -> None:
        """Let nothing be started, and say why; with "", allow it again."""
        self._refused = bool(why)
        self.run_button.tooltip = why
        self.buttons.allow_start(not self._refused and not self.running)
        if why:
            self.verdict.say(why, good=False)

    def _ipython_display_(self) -> None:
        super()._ipython_display_()
        if self.warm:  # the first press of Run is then as quick as the others
            threading.Thread(target=launcher.stand_by, daemon=True).start()
