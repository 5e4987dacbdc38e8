"""What every panel does: Run, Stop, follow what was started, show how it ended and what changed.

Nothing here blocks the kernel: a run lives in its own process, an asyncio task follows it, and
what has to wait for processes waits in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
from typing import Any

import ipywidgets as widgets

from labkit.results.event_log import EventLogResult
from labkit.results.launch import launch
from labkit.show.display import StaticFigure, with_text

FRAME_S = 1 / 20
# A front end holds back a control's last change until the one before is acknowledged, and may
# let the press of Run overtake it: wait for what is on its way, so that what is seen is what runs.
SETTLE_S = 0.15


class Rerun(widgets.VBox):
    """Controls, two buttons and what they bring about. `.run` is the last run, `.runs` all.

    A subclass says what to run (`wanted`), what counts as a result (`measured`), and shows it
    (`show_result`). `view` follows a run: it has `show_before`, `update` and `finish`.
    """

    _task: asyncio.Task | None = None  # follows the run; kept, or it could be collected
    terminal = "labkit"  # what to use where there is no notebook

    def __init__(self, controls: dict[str, Any], view: widgets.Widget):
        self._stop = asyncio.Event()
        self.runs: list[Any] = []  # oldest first
        self.controls, self.view = controls, view
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.verdict, self.comparison = widgets.HTML(), widgets.HTML()
        self.figure = widgets.Image(format="png")
        super().__init__([self._head(), self.view, self.verdict, self.comparison, self.figure])
        self.layout = widgets.Layout(max_width="900px", overflow="hidden")
        self.figure.layout = widgets.Layout(max_width="100%", display="none")
        self.run_button.on_click(lambda _button: self.start())
        self.stop_button.on_click(lambda _button: self.stop())

    def _head(self) -> widgets.Box:
        columns = "repeat(auto-fill, minmax(min(170px, 100%), 1fr))"
        layout = widgets.Layout(
            grid_template_columns=columns, grid_gap="6px 16px", overflow="hidden"
        )
        knobs = widgets.GridBox(list(self.controls.values()), layout=layout)
        for button in (self.run_button, self.stop_button):
            button.layout = widgets.Layout(width="96px")
        buttons = widgets.HBox([self.run_button, self.stop_button])
        return widgets.VBox([knobs, buttons], layout=widgets.Layout(grid_gap="6px"))

    # -- what a subclass says --------------------------------------------------------------------

    def begin(self) -> Any:
        """Start what the controls ask for and return it."""
        return launch(self.wanted())

    def wanted(self) -> Any:
        """What Run starts, as the controls stand; raises ValueError where they do not agree."""
        raise NotImplementedError

    def measured(self, run: Any) -> bool:
        """Whether `run` has results to compare the next one with."""
        raise NotImplementedError

    def show_result(self, run: Any, before: Any) -> None:
        """Show how `run` ended, and against `before` (None for the first)."""
        raise NotImplementedError

    # -- what it holds ---------------------------------------------------------------------------

    @property
    def run(self) -> Any:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._task is not None and not self._task.done()

    # -- what the buttons do ---------------------------------------------------------------------

    def start(self) -> None:
        """Start what is `wanted` and follow it; nothing happens while a run is going on."""
        if self.running:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.say(f"The panel needs a notebook: here, use {self.terminal}.", good=False)
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
            run, before = self.begin(), self._last_measured()
            self.runs.append(run)
            self.view.show_before(before)
            self.say("")
            await self._follow(run)
            self.show_result(run, before)
        except Exception as error:  # in a task nobody would see it
            plain = isinstance(error, (ValueError, OSError))
            self.say(str(error) if plain else f"{type(error).__name__}: {error}", good=False)
        finally:
            self._busy(False)

    async def _follow(self, run: EventLogResult) -> None:
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

    def _last_measured(self) -> Any:
        return next((run for run in reversed(self.runs) if self.measured(run)), None)

    # -- what it shows ---------------------------------------------------------------------------

    def say(self, text: str, good: bool = True) -> None:
        """Show one sentence under the view; in alarm's colour where it is not `good`."""
        colour = "var(--jp-brand-color1, #1976d2)" if good else "var(--jp-error-color1, #d32f2f)"
        self.verdict.value = text and (
            f"<div class='labkit-verdict' style='border-left:3px solid {colour};padding:1px 8px;"
            f"line-height:1.45;overflow-wrap:anywhere'>{html.escape(text)}</div>"
        )

    def compare(self, lines: list[str]) -> None:
        """Show these lines under the sentence."""
        text = "<br>".join(map(html.escape, lines))
        self.comparison.value = f"<div style='line-height:1.45'>{text}</div>"

    def picture(self, drawn: StaticFigure) -> None:
        """Show a figure, or none where it has nothing to draw."""
        self.figure.value = drawn.png
        self.figure.layout.width = f"{drawn.width}px"
        self.figure.layout.display = None if drawn.png else "none"

    def _busy(self, busy: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = busy, not busy
        for old in (self.comparison, self.figure):  # faint while a run goes on: not its own
            (old.add_class if busy else old.remove_class)("labkit-old")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), repr(self))
