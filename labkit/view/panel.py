"""The panel: controls generated from knobs, Run, Stop, the live view, a verdict, a comparison.

Nothing here blocks the kernel: an asyncio task follows the run, and a thread waits for processes.
All handlers run in the thread that made the panel: see home_thread.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ipywidgets as widgets
from IPython.display import display
from ipywidgets import Layout

from labkit.knobs import check_names
from labkit.process import launcher
from labkit.results.event_log import POLL_S
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.view.controls import Control, Ghost, History, in_words, shown
from labkit.view.display import StaticFigure, why_no_widgets
from labkit.view.home_thread import HomeThread
from labkit.view.live import LiveView
from labkit.view.run_header import busy_of

SETTLE_S = 0.1  # a press of Run may overtake a control's last change: wait for what is on its way
GRID = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
# Under the panel, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and where its loss stopped being one."""
    gone = [] if run.watched else [i for i, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    return f"{busy_of(run)}. {run.diagnose()}{nan}"


def runs_apart(run: Run, before: Run | None, name: str = "the run before") -> list[str]:
    """Say what was changed since `before`, what it brought, and what could not be applied."""
    lines = [f"{name} was not applied: {why}." for name, why in run.not_applied.items()]
    if before is None:
        return lines
    what = changes(before.asked.to_dict(), run.asked.to_dict())
    busy = f"{run.machine.kind.upper()} busy {before.busy_text} → {run.busy_text}"
    return [f"Against {name} ({what}): {busy}. {run.compare(before).verdict}", *lines]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say which values are other than they were."""
    changed = [name for name, value in new.items() if old.get(name) != value]
    pairs = (f"{name} {shown(old.get(name))} → {shown(new[name])}" for name in changed)
    return ", ".join(pairs) or "nothing changed"


@dataclass
class Kind:
    """What a panel is of; `before` is the last run that had numbers, None for the first."""

    what: str  # said where no widgets are shown
    terminal: str  # what does the same where there is no notebook
    controls: dict[str, Control]
    asked: Callable[[dict[str, Any]], Any]  # values by name -> the spec; ValueError on a conflict
    verdict: Callable[[Any], str] = run_verdict
    against: Callable[..., list[str]] = runs_apart  # run, before, name of before -> lines
    predict: Callable[[Any, Any], Any] | None = None  # run, asked -> Prediction, None: no change
    auto: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {}  # what None stands for
    # (asked, its run or None) -> text
    copies: dict[str, Callable[[Any, Any], str]] = field(default_factory=dict)
    warm: bool = False  # whether a standby kept ready can start it
    # run, before -> what is drawn below the view, which of a single run is the picture itself
    figure: Callable[[Any, Any], StaticFigure | None] = lambda _run, _before: None
    start: Callable[[Any], Any] = lambda asked: launch(asked)  # -> the run that has begun
    measured: Callable[[Any], bool] = lambda run: run.throughput is not None
    view: LiveView = field(default_factory=LiveView)
    hint: str = "Set the knobs and press Run."  # said before the first run
    button: str = "Run"


class TextBox(widgets.VBox):
    """Widgets in a column; `text` stands for them where no widgets are shown."""

    def __init__(self, text: str, children: list[widgets.Widget]):
        self.missing = why_no_widgets()
        self.text = f"{text} No widgets here: {self.missing}." if self.missing else text
        super().__init__(children, layout=Layout(max_width="900px", overflow="hidden"))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        shown = None if self.missing else super()._repr_mimebundle_(**kwargs)
        return (shown or {}) | {"text/plain": self.text}


class Panel(TextBox):
    """Controls, two buttons and what they bring about. `.run` is the last run, `.runs` all."""

    _task: asyncio.Task | None = None  # follows the run; kept, or it could be collected

    def __init__(self, kind: Kind):
        self.kind, self.controls, self.view = kind, kind.controls, kind.view
        self.runs: list[Any] = []  # oldest first
        self.opened_with = self.values
        self._stop = asyncio.Event()
        self._refused = self._telling = False  # whether the controls do not go together, are told
        self._expected: tuple = (None, None, None)  # asked, the run it is predicted from, of it
        self.run_button = widgets.Button(description=kind.button, icon="play")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.button_style = "primary"
        self.home = HomeThread()
        self.run_button.on_click(lambda _button: self.home.call(self.start))
        self.stop_button.on_click(lambda _button: self.home.call(self.stop))
        self.ghost, self.verdict, self.comparison = Ghost(), widgets.HTML(), widgets.HTML()
        self.figure = widgets.Image(format="png", layout=Layout(max_width="100%", display="none"))
        texts = {
            name: lambda of=of: of(self.asked, self._measured(self.asked))
            for name, of in kind.copies.items()
        }
        self.history = History(self._pinned, texts, self.home)
        grid = Layout(grid_template_columns=GRID, grid_gap="6px 16px", overflow="hidden")
        knobs = widgets.GridBox(list(kind.controls.values()), layout=grid)
        buttons = widgets.HBox([self.run_button, self.stop_button])
        ghost = [self.ghost] if kind.predict else []
        said = [self.verdict, self.comparison, self.history, self.figure]
        self.instead = f"Where no widgets show, {kind.terminal} leaves a picture and a table."
        text = f"labkit panel {kind.what}: run this cell in Jupyter to use it. {self.instead}"
        super().__init__(text, [knobs, buttons, *ghost, self.view, *said])
        self.add_class("labkit-panel")
        for control in self.controls.values():
            control.widget.observe(lambda _change: self.home.call(self._changed), "value")
        self.say(kind.hint)
        self._changed()

    @property
    def values(self) -> dict[str, Any]:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def asked(self) -> Any:
        """The spec that Run would start; raises ValueError where the controls conflict."""
        return self.kind.asked(self.values)

    @property
    def run(self) -> Any:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start what is `asked` and follow it, unless a run is going on."""
        if self.running or self._refused:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.say(f"The panel needs a notebook: here, use {self.kind.terminal}.", good=False)
            return
        self._stop = asyncio.Event()
        self._busy(True)
        self._task = loop.create_task(self._session())

    def stop(self) -> None:
        """Ask the run to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self._stop.set()

    def close(self) -> None:
        """Stop what is running and remove the panel."""
        self.stop()
        super().close()

    def run_of(self, **values: Any) -> Any:
        """Return the last run with the controls as the panel opened, but for `values`.

        Where Run was not pressed for it, it is measured now, in this panel. Raises ValueError on
        a bad value.
        """
        check_names(values, self.controls)
        wanted = self.kind.asked(self.opened_with | values)
        if self.running and self.run:
            self.run.wait()
        if run := self._measured(wanted):
            return run
        for name, value in (self.opened_with | values).items():
            self.controls[name].value = value
        self._busy(True)
        try:
            run, before = self._begin()
            run.wait(each=self.view.follow)
            self._show(run, before)
        finally:
            self._busy(False)
        return run

    async def _session(self) -> None:
        """Run once, from the press of the button to the last figure."""
        try:
            await self._pause(SETTLE_S)
            run, before = self._begin()
            await self._follow(run)
            self._show(run, before)
        except Exception as error:  # in a task nobody would see it
            plain = isinstance(error, (ValueError, OSError))
            self.say(str(error) if plain else f"{type(error).__name__}: {error}", good=False)
        finally:
            self._busy(False)

    def _begin(self) -> tuple[Any, Any]:
        """Start what is asked; return the run and the one to compare it with."""
        asked, before = self.asked, self.history.pinned or self._measured()
        self._forecast(asked)
        self.view.show_before(before)
        run = self.kind.start(asked)
        self.runs.append(run)
        moved = {n: v for n, v in self.values.items() if v != self.opened_with[n]}
        self._name = ", ".join(f"{n} {shown(v)}" for n, v in moved.items()) or "as it opened"
        return run, before

    def _measured(self, asked: Any = None) -> Any:
        """Return the last run that has numbers, or that of what was `asked`; None without one."""
        ended = (r for r in reversed(self.runs) if not r.running and self.kind.measured(r))
        return next((run for run in ended if asked is None or run.asked == asked), None)

    async def _follow(self, run: Any) -> None:
        """Draw `run` until it ends or Stop is pressed; no process of it is left afterwards."""
        try:
            while run.running and not self._stop.is_set():
                self.view.follow(run)
                await self._pause(POLL_S)
        except BaseException:
            self._stop.set()
            raise
        finally:
            await asyncio.to_thread(run.stop if self._stop.is_set() else run.wait)

    async def _pause(self, seconds: float) -> None:
        """Let the kernel do other things for so long, or until Stop is pressed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def say(self, text: str, good: bool = True) -> None:
        """Show one sentence under the view; in alarm's colour where it is not `good`."""
        colour = "var(--jp-brand-color1, #1976d2)" if good else "var(--jp-error-color1, #d32f2f)"
        self.verdict.remove_class("labkit-old")
        self.verdict.value = text and (
            f"<div class='labkit-verdict' role='status' style='border-left:3px solid {colour};"
            "padding:1px 8px;line-height:1.45;white-space:pre-line;overflow-wrap:anywhere'>"
            f"{html.escape(text)}</div>"
        )

    def _show(self, run: Any, before: Any) -> None:
        """Show how `run` ended, what differs from `before`, and the figure of both."""
        self.view.finish(run)
        measured = self.kind.measured(run)
        ended = run.error or f"{run.outcome.capitalize()}: too short to tell."
        self.say(self.kind.verdict(run) if measured and not run.error else ended, not run.error)
        self._say_difference(run, before if measured else None)
        drawn = self.kind.figure(run, before) if measured else None
        if drawn:
            self.figure.value, self.figure.layout.width = drawn.png, f"{drawn.width}px"
        self.figure.layout.display = None if drawn else "none"
        numbers = ", ".join(run.numbers.split(", ")[:2]) if measured else ""
        limit = run.diagnose().bottleneck if measured and hasattr(run, "diagnose") else run.outcome
        self.history.add(run, self._name, numbers, limit)
        _asked, base, found = self._expected
        if found and measured:
            self.view.expected = self.ghost.show(found, base, run)
        elif not self._refused:
            self._forecast(self.asked)

    def _say_difference(self, run: Any, before: Any) -> None:
        """Say what `before` and `run` have apart."""
        pinned = self.history.pinned
        name = []
        if pinned is not None and before is pinned:
            name = [f"the pinned run ({self.history.name(pinned)})"]
        lines = map(html.escape, self.kind.against(run, before, *name))
        self.comparison.value = f"<div style='line-height:1.45'>{'<br>'.join(lines)}</div>"

    def _pinned(self) -> None:
        """Compare with the run that the list pins, from now on."""
        pinned, run = self.history.pinned, self._measured()
        self.view.show_before(pinned)
        if run is not None and run is not pinned and not self.running:
            self._say_difference(run, pinned)

    def _busy(self, busy: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = busy or self._refused, not busy
        for old in (self.verdict, self.comparison, self.figure):  # faint: not this run's own
            (old.add_class if busy else old.remove_class)("labkit-old")

    def _changed(self) -> None:
        """Say at once what the controls would bring, or where they do not go together."""
        if self._telling:
            return
        refused = self._refused
        said = ""
        asked = None
        self._telling = True
        automatic = self.kind.auto(self.values)
        for name in automatic.keys() & self.controls.keys():
            self.controls[name].tell_auto(automatic[name])
        self._telling = False
        try:
            asked = self.asked
        except ValueError as error:
            said = in_words(str(error))
        self._refused, self.run_button.tooltip = bool(said), said
        self.run_button.disabled = self._refused or self.running
        (self.ghost.add_class if said else self.ghost.remove_class)("labkit-old")
        if said or refused:
            self.say(said or "The controls go together again: press Run.", good=not said)
        if not said and not self.running:
            self._forecast(asked)

    def _forecast(self, asked: Any) -> None:
        """Draw what is expected of `asked` from the last run; about 30 ms."""
        run = self._measured()
        if self.kind.predict is None or (run is not None and self._expected[:2] == (asked, run)):
            return
        found = self.kind.predict(run, asked) if run is not None else None
        self._expected = asked, run, found
        self.view.expected = self.ghost.show(found, run)

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        if self.missing is None:
            fallback = FALLBACK.format(self.instead)
            display({"text/html": fallback, "text/plain": ""}, raw=True)
        if self.kind.warm:  # the first press of Run is then as quick as the others
            threading.Thread(target=launcher.stand_by, daemon=True).start()
