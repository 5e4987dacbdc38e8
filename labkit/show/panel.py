"""The panel: knobs, Run, Stop, the live view, a verdict, and the run before for comparison.

Nothing here blocks the kernel: a run lives in its own process, an asyncio task follows it, and
what has to wait for processes waits in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from labkit.lab.launcher import launch
from labkit.lab.pipeline import KNOBS, Pipeline, check_names
from labkit.lab.run import Run
from labkit.show.controls import Control
from labkit.show.live import LiveView, StaticFigure, allow_widgets, with_text
from labkit.show.verdict import against, verdict

FRAME_S = 1 / 20
# A front end holds back a control's last change until the one before is acknowledged, and may
# let the press of Run overtake it: wait for what is on its way, so that what is seen is what runs.
SETTLE_S = 0.15
USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")


class Panel(widgets.VBox):
    """Widgets round a pipeline. `.run` is the last Run, `.runs` all of them, oldest first."""

    _task: asyncio.Task | None = None  # follows the run; kept, or it could be collected

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        check_names(dict.fromkeys(knobs))
        self._base, self._stop = pipeline, asyncio.Event()
        self._refused = False  # whether the knobs as they stand do not go together
        self.runs: list[Run] = []
        self.controls = {name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        self.view = LiveView()
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.verdict, self.comparison = widgets.HTML(), widgets.HTML()
        self.figure = widgets.Image(format="png")
        super().__init__([self._head(), self.view, self.verdict, self.comparison, self.figure])
        self.layout = widgets.Layout(max_width="900px", overflow="hidden")
        self.figure.layout = widgets.Layout(max_width="100%", display="none")
        self.run_button.on_click(lambda _button: self.start())
        self.stop_button.on_click(lambda _button: self.stop())
        for control in self.controls.values():
            control.widget.observe(self._changed, "value")
        self._say("Set the knobs and press Run.")
        self._changed()

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

    # -- what it holds ---------------------------------------------------------------------------

    @property
    def pipeline(self) -> Pipeline:
        """What Run would run; raises ValueError where the knobs do not go together."""
        return self._base.but(**{name: c.value for name, c in self.controls.items()})

    @property
    def run(self) -> Run | None:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self._task is not None and not self._task.done()

    # -- what the buttons do ---------------------------------------------------------------------

    def start(self) -> None:
        """Start a run of `pipeline` and follow it; nothing happens while one is going on."""
        if self.running:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._say("The panel needs a notebook: here, use labkit.run().", good=False)
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
            run, before = launch(self.pipeline), self._last_measured()
            self.runs.append(run)
            self.view.show_before(before)
            self._say("")
            await self._follow(run)
            self._show_result(run, before)
        except Exception as error:  # in a task nobody would see it
            plain = isinstance(error, (ValueError, OSError))
            self._say(str(error) if plain else f"{type(error).__name__}: {error}", good=False)
        finally:
            self._busy(False)

    async def _follow(self, run: Run) -> None:
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

    def _last_measured(self) -> Run | None:
        return next((run for run in reversed(self.runs) if run.utilization is not None), None)

    # -- what it shows ---------------------------------------------------------------------------

    def _show_result(self, run: Run, before: Run | None) -> None:
        self._say(verdict(run), good=run.error is None)
        if run.utilization is None:
            before = None
        lines = [f"{name} was not applied: {why}." for name, why in run.not_applied.items()]
        if before is not None:
            lines.insert(0, against(run, before))
        text = "<br>".join(map(html.escape, lines))
        self.comparison.value = f"<div style='line-height:1.45'>{text}</div>"
        picture = StaticFigure.of(run, **({"before": before} if before else {}))
        self.figure.value = picture.png
        self.figure.layout.width = f"{picture.width}px"
        self.figure.layout.display = None if picture.png else "none"

    def _say(self, text: str, good: bool = True) -> None:
        colour = "var(--jp-brand-color1, #1976d2)" if good else "var(--jp-error-color1, #d32f2f)"
        self.verdict.value = text and (
            f"<div class='labkit-verdict' style='border-left:3px solid {colour};padding:1px 8px;"
            f"line-height:1.45;overflow-wrap:anywhere'>{html.escape(text)}</div>"
        )

    def _busy(self, busy: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = busy, not busy
        for old in (self.comparison, self.figure):  # faint while a run goes on: not its own
            (old.add_class if busy else old.remove_class)("labkit-old")

    def _changed(self, _change: Any = None) -> None:
        try:
            _ = self.pipeline
        except ValueError as error:
            self._say(str(error), good=False)
            self._refused = True
        else:
            if self._refused:  # what it said holds no longer
                self._say("")
            self._refused = False

    def __repr__(self) -> str:
        return f"labkit panel for {', '.join(self.controls)}: run this cell in Jupyter to use it."

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_text(super()._repr_mimebundle_(**kwargs), repr(self))


def panel(
    pipeline: Pipeline | None = None, knobs: Sequence[str] = USUAL_KNOBS, **settings: Any
) -> Panel:
    """Return widgets to set `knobs` of a pipeline, run it, watch it and compare it.

    Args:
        pipeline: Where the knobs start from; the default pipeline where it is left out.
        knobs: Names of the knobs to show; each is a knob of `Pipeline`.
        **settings: Changes to `pipeline`, as in `pipeline.but(...)`.

    Raises:
        ValueError: A name that is no knob, or a value that is not allowed.
    """
    allow_widgets()
    return Panel((pipeline or Pipeline()).but(**settings), knobs)
