"""The panel: controls generated from knobs, Run, Stop, the live view, a verdict, a comparison.

Nothing here blocks the kernel: a run lives in its own process, an asyncio task follows it, and
what has to wait for processes waits in a thread. `labkit.show.panels` has the kinds of panel.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ipywidgets as widgets
from IPython.display import display
from ipywidgets import Layout

from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.show.controls import Control, shown
from labkit.show.display import StaticFigure, allow_widgets
from labkit.show.live import LiveView

FRAME_S = 1 / 20
SETTLE_S = 0.15  # a press of Run may overtake a control's last change: wait for what is on its way
GRID = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
STYLE = """<style>
.labkit-old { opacity: 0.4; }
.jp-OutputArea:has(.labkit-panel) .labkit-fallback,
.output_container:has(.labkit-panel) .labkit-fallback,
#output-area:has(.labkit-panel) .labkit-fallback { display: none; }
</style>"""
# Under the panel, hidden by that style sheet: seen only where the panel's kernel is gone
WITHOUT_KERNEL = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again.</div>"


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and where its loss stopped being one."""
    gone = [] if run.watched else [i for i, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    return f"{run.machine.kind.upper()} busy {run.busy_text}. {run.diagnose()}{nan}"


def runs_apart(run: Run, before: Run | None) -> list[str]:
    """Say what was changed since `before`, what it brought, and what could not be applied."""
    lines = [f"{name} was not applied: {why}." for name, why in run.not_applied.items()]
    if before is None:
        return lines
    what = changes(before.asked.to_dict(), run.asked.to_dict())
    return [f"Against the run before ({what}): {run.compare(before).verdict}", *lines]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say which values are other than they were."""
    changed = [name for name, value in new.items() if old.get(name) != value]
    pairs = (f"{name} {shown(old.get(name))} → {shown(new[name])}" for name in changed)
    return ", ".join(pairs) or "nothing changed"


@dataclass
class Kind:
    """What a panel is of; `before` is the last run that had numbers, None for the first."""

    text: str  # stands for the panel where no widgets are shown
    terminal: str  # what does the same where there is no notebook
    controls: dict[str, Control]
    asked: Callable[[dict[str, Any]], Any]  # values by name -> the spec; ValueError on a conflict
    verdict: Callable[[Any], str] = run_verdict
    against: Callable[[Any, Any], list[str]] = runs_apart  # run, before -> lines
    figure: Callable[[Any, Any], StaticFigure | None] = StaticFigure.of  # run, before
    start: Callable[[Any], Any] = launch  # spec -> the run that has begun
    measured: Callable[[Any], bool] = lambda run: run.throughput is not None
    view: widgets.Widget = field(default_factory=LiveView)
    hint: str = "Set the knobs and press Run."  # said before the first run
    button: str = "Run"


class TextBox(widgets.VBox):
    """Widgets in a column; `text` stands for them where no widgets are shown."""

    def __init__(self, text: str, children: list[widgets.Widget]):
        allow_widgets()
        self.text = text
        super().__init__(children, layout=Layout(max_width="900px", overflow="hidden"))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return super()._repr_mimebundle_(**kwargs) | {"text/plain": self.text}


class Panel(TextBox):
    """Controls, two buttons and what they bring about. `.run` is the last run, `.runs` all."""

    _task: asyncio.Task | None = None  # follows the run; kept, or it could be collected

    def __init__(self, kind: Kind):
        self.kind, self.controls, self.view = kind, kind.controls, kind.view
        self.runs: list[Any] = []  # oldest first
        self._stop = asyncio.Event()
        self._refused = False  # whether the controls as they stand do not go together
        self.run_button = widgets.Button(description=kind.button, icon="play")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.button_style = "primary"
        self.run_button.on_click(lambda _button: self.start())
        self.stop_button.on_click(lambda _button: self.stop())
        self.verdict, self.comparison = widgets.HTML(), widgets.HTML()
        self.figure = widgets.Image(format="png", layout=Layout(max_width="100%", display="none"))
        grid = Layout(grid_template_columns=GRID, grid_gap="6px 16px", overflow="hidden")
        knobs = widgets.GridBox(list(kind.controls.values()), layout=grid)
        buttons = widgets.HBox([self.run_button, self.stop_button])
        said = [self.verdict, self.comparison, self.figure]
        super().__init__(kind.text, [knobs, buttons, self.view, *said, widgets.HTML(STYLE)])
        self.add_class("labkit-panel")
        for control in self.controls.values():
            control.widget.observe(self._changed, "value")
        self.say(kind.hint)
        self._changed()

    @property
    def asked(self) -> Any:
        """The spec that Run would start; raises ValueError where the controls conflict."""
        return self.kind.asked({name: control.value for name, control in self.controls.items()})

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
        if self.running:
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
        if self.running:
            self.stop()
        super().close()

    async def _session(self) -> None:
        """Run once, from the press of the button to the last figure."""
        try:
            await self._pause(SETTLE_S)
            run = self.kind.start(self.asked)
            before = next((old for old in reversed(self.runs) if self.kind.measured(old)), None)
            self.runs.append(run)
            self.view.show_before(before)
            self.say("")
            await self._follow(run)
            self._show(run, before)
        except Exception as error:  # in a task nobody would see it
            plain = isinstance(error, (ValueError, OSError))
            self.say(str(error) if plain else f"{type(error).__name__}: {error}", good=False)
        finally:
            self._busy(False)

    async def _follow(self, run: Any) -> None:
        """Draw `run` until it ends or Stop is pressed; no process of it is left afterwards."""
        try:
            while run.running and not self._stop.is_set():
                self.view.update(run)
                await self._pause(FRAME_S)
        except BaseException:
            self._stop.set()
            raise
        finally:
            await asyncio.to_thread(run.stop if self._stop.is_set() else run.wait)
        self.view.finish(run)

    async def _pause(self, seconds: float) -> None:
        """Let the kernel do other things for so long, or until Stop is pressed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def say(self, text: str, good: bool = True) -> None:
        """Show one sentence under the view; in alarm's colour where it is not `good`."""
        colour = "var(--jp-brand-color1, #1976d2)" if good else "var(--jp-error-color1, #d32f2f)"
        self.verdict.value = text and (
            f"<div class='labkit-verdict' style='border-left:3px solid {colour};padding:1px 8px;"
            f"line-height:1.45;overflow-wrap:anywhere'>{html.escape(text)}</div>"
        )

    def _show(self, run: Any, before: Any) -> None:
        """Show how `run` ended, what differs from `before`, and the figure of both."""
        measured = self.kind.measured(run)
        ended = run.error or f"{run.outcome.capitalize()}: too short to tell."
        self.say(self.kind.verdict(run) if measured and not run.error else ended, not run.error)
        lines = map(html.escape, self.kind.against(run, before if measured else None))
        self.comparison.value = f"<div style='line-height:1.45'>{'<br>'.join(lines)}</div>"
        drawn = self.kind.figure(run, before) if measured else None
        if drawn:
            self.figure.value, self.figure.layout.width = drawn.png, f"{drawn.width}px"
        self.figure.layout.display = None if drawn else "none"

    def _busy(self, busy: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = busy, not busy
        for old in (self.comparison, self.figure):  # faint while a run goes on: not its own
            (old.add_class if busy else old.remove_class)("labkit-old")

    def _changed(self, _change: Any = None) -> None:
        """Say at once where the controls do not go together, until they do again."""
        said = ""
        try:
            _ = self.asked
        except ValueError as error:
            said = str(error)
        if said or self._refused:
            self.say(said, good=False)
        self._refused = bool(said)

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        display({"text/html": WITHOUT_KERNEL, "text/plain": ""}, raw=True)
