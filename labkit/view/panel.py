"""`lk.panel`, a pipeline's knobs, Run, Stop, the live view and a verdict; that of `lk.measure`.

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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import ipywidgets as widgets
import numpy as np
from IPython.display import display

from labkit.api import Measurements, Run, launch
from labkit.bench.grid import Grid
from labkit.knobs import NUMBERS, Knob, Setting, Settings, as_typed, check_names
from labkit.prediction.prediction import Prediction, predict
from labkit.process import launcher
from labkit.results.log_reader import POLL_S
from labkit.results.payload import Source
from labkit.spec import KNOBS, Pipeline
from labkit.view.live import LiveView, PanelAccess
from labkit.view.rows_figure import plot_measurements
from labkit.view.running import pipeline_with
from labkit.view.style import Picture

# The whole numbers that a slider stops at: all up to 16, then powers of two and between
STOPS = sorted({*range(17), *(first << power for power in range(31) for first in (1, 3))})
NONE = "None"  # stands for None in a widget, which would take None itself as nothing chosen
SETTLE_S = 0.1  # s, for a control's last change to arrive: a press may overtake it
# Under the widget, hidden by live.css: seen only where its kernel is gone, or no widgets are shown
FALLBACK = "<div class='labkit-fallback'>A panel needs its kernel: run this cell again. {}</div>"
USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
UNMOVED = (
    "Run once, then move a slider: this line says what it would bring, before you run it again."
)
REDRAW_S = 1.0  # s, between two drawings of the rows of a function so far
FURTHER = 2  # times an axis's largest value is how far its control goes


def panel(
    pipeline: Pipeline | None = None,
    knobs: Sequence[str] = USUAL_KNOBS,
    **settings: object,
) -> PipelinePanel:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        pipeline: The default one where it is left out.
        knobs: The names of the knobs to show.
        **settings: Changes to the pipeline, as in `pipeline.but(...)`.
    """
    check_names(knobs, KNOBS)
    return PipelinePanel(pipeline_with(pipeline, settings), knobs)


class Panel(widgets.VBox):
    """What every panel has; a kind of panel says what a press does (`_work`) and what is shown."""

    PRESS: ClassVar[str]  # the button's name
    INSTEAD: ClassVar[str]  # what to do where no widgets show

    task: asyncio.Task[None] | None = None  # referred to here, or it might be collected
    is_stopping = False

    def __init__(self, controls: Mapping[str, Any], *below: widgets.Widget):
        """Put what is shown `below` the controls, and hear of every control that moves."""
        self.controls = controls
        self.home = running_loop()  # of the thread that made it
        self.run_button = widgets.Button(
            description=self.PRESS, icon="play", button_style="primary"
        )
        self.run_button.on_click(self._at_home(self.start))
        self.stop_button = widgets.Button(description="Stop", icon="stop")
        self.stop_button.on_click(self._at_home(self.stop))
        self.verdict = widgets.HTML()
        grid = widgets.GridBox([*self.controls.values()])
        buttons = widgets.HBox([self.run_button, self.stop_button])
        super().__init__([grid, buttons, *below, self.verdict, PanelAccess()])
        self.add_class("labkit-panel")
        for each in self.controls.values():
            each.observe(self._at_home(self._on_change), "value")
        self._show_busy(False)

    def _at_home(self, act: Callable[[], object]) -> Callable[[object], object]:
        """Return a handler that acts in the panel's thread: at once, or when its loop is free."""

        def handle(_event: object) -> None:
            if self.home is None or self.home is running_loop():
                act()
            else:
                self.home.call_soon_threadsafe(act)

        return handle

    @property
    def values(self) -> Settings:
        """The controls' values by name."""
        values = {name: each.value for name, each in self.controls.items()}
        return {name: None if value == NONE else value for name, value in values.items()}

    # Run and Stop: one thing at a time, in a task, so that the kernel stays free

    @property
    def running(self) -> bool:
        """Whether something is going on."""
        return self.task is not None and not self.task.done()

    def start(self) -> None:
        """Do the work that the controls ask for, unless some is going on."""
        if self.home is None:
            self.say(f"The buttons need a notebook. {self.INSTEAD}", good=False)
        elif not self.running:
            self.is_stopping = False
            self._show_busy(True)
            self.task = self.home.create_task(self._try_work())

    def stop(self) -> None:
        """Ask what goes on to stop; the panel says so at once and shows what it did by then."""
        self.stop_button.disabled = True
        self.is_stopping = True

    def close(self) -> None:
        """Stop what is going on and remove the panel."""
        self.stop()
        super().close()

    async def follow(self, run: Run | Measurements, draw: Callable[[Any], object]) -> None:
        """Draw `run` until it ends or is to stop; no process of it is left afterwards."""
        ended = run.stop  # also where drawing breaks
        try:
            while run.data.running and not self.is_stopping:
                draw(run)
                await asyncio.sleep(POLL_S)
            ended = run.stop if self.is_stopping else run.wait
        finally:
            await asyncio.to_thread(ended)

    async def _try_work(self) -> None:
        """Do the work, and say what went wrong: in a task nobody would see it."""
        try:
            await asyncio.sleep(SETTLE_S)
            await self._work()
        except Exception as error:
            self.say(f"{type(error).__name__}: {error}", good=False)
        finally:
            self._show_busy(False)

    async def _work(self) -> None:
        """Do what a press asks for, up to the last figure."""
        raise NotImplementedError

    # What is shown

    def say(self, text: str, good: bool = True) -> None:
        """Show a sentence of now; in alarm's colour where it is not `good`."""
        self.verdict.value = status_html(text, "verdict" if good else "verdict alarm")

    def _on_change(self) -> None:
        """Say what the controls now ask for."""

    def _show_busy(self, busy: bool, in_cell: bool = False) -> None:
        """Enable what can be pressed; while a cell waits for its run, no press arrives."""
        self.run_button.disabled = busy
        self.stop_button.disabled = in_cell or not busy

    def __repr__(self) -> str:
        return f"labkit panel for {', '.join(self.controls)}"

    def _ipython_display_(self) -> None:
        show = getattr(super(), "_ipython_display_", None)  # of ipywidgets 7, which Colab has
        show() if show else display(self._repr_mimebundle_(), raw=True)
        fallback = FALLBACK.format(self.INSTEAD)
        display({"text/html": fallback, "text/plain": ""}, raw=True)
        # The first press is then as quick as the others
        threading.Thread(target=launcher.stand_by, daemon=True).start()


def status_html(text: str, look: str = "") -> str:
    """Return a sentence as HTML that a screen reader reads out when it changes."""
    return f"<div class='labkit-status {look}' role='status'>{html.escape(text)}</div>"


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


class PipelinePanel(Panel):
    """Widgets to set some knobs of a pipeline and run it. `.run` is the last run, `.runs` all."""

    PRESS = "Run"
    INSTEAD = "Where no widgets show, use labkit.run(): it leaves a picture and a table."

    launch = staticmethod(launch)
    before: Run | None = None  # the last one with numbers when the last run began
    expected: Prediction | None = None  # of the last run

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        controls = {name: control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        self.prediction = widgets.HTML()
        self.prediction.add_class("labkit-prediction")
        self.view = LiveView()
        super().__init__(controls, self.prediction, self.view)
        self.pipeline = pipeline
        self.runs: list[Run] = []  # oldest first
        self._on_change()

    # What the controls say, and what has run

    @property
    def next_pipeline(self) -> Pipeline:
        """The pipeline that Run would start; raises ValueError where the controls conflict."""
        return self.pipeline.but(**self.values)

    @property
    def run(self) -> Run | None:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    def with_numbers(self, pipeline: Pipeline | None = None) -> Run | None:
        """Return the last run, or the last of `pipeline`, that has numbers; None without one."""
        for run in reversed(self.runs):
            if not run.running and run.throughput is not None and pipeline in (None, run.asked):
                return run
        return None

    # Run and Stop

    def run_of(self, **values: Setting) -> Run:
        """Return the last run of the pipeline as the panel opened with it, but for `values`.

        Where Run was not pressed for it, it is measured now, in this panel. Raises ValueError on
        a bad value.
        """
        pipeline = self.pipeline.but(**values)
        if self.running and self.run:
            self.run.wait()
        if run := self.with_numbers(pipeline):
            return run
        self._show_busy(True, in_cell=True)
        try:
            run = self._begin(pipeline).wait(each=self.view.update)
            self._show(run)
        finally:
            self._show_busy(False)
        return run

    async def _work(self) -> None:
        run = self._begin(self.next_pipeline)
        await self.follow(run, self.view.update)
        self._show(run)

    def _begin(self, pipeline: Pipeline) -> Run:
        """Start a run; keep the last one with numbers, and what is expected of this one."""
        run = self.launch(pipeline)
        self.before = self.with_numbers()
        self.expected = self.forecast(pipeline)
        self.view.show_before(self.before)
        self.say("Running …")
        self.runs.append(run)
        return run

    # What is shown

    def forecast(self, pipeline: Pipeline) -> Prediction | None:
        """Say and draw what is expected of `pipeline` from the last run, and return it; 30 ms."""
        before = self.with_numbers()
        old = (before.asked if before else pipeline).to_dict()
        moved = {name: value for name, value in pipeline.to_dict().items() if value != old[name]}
        expected = predict(before, **moved) if before and moved else None
        self.view.expected = []
        if expected and expected.utilization_range:
            least, most = expected.utilization_range
            self.view.expected = [least, expected.utilization, most]
        self.prediction.value = status_html(str(expected or UNMOVED))
        return expected

    def _show(self, run: Run) -> None:
        """Show how `run` ended, what differs from the one before, and what had been expected."""
        self.view.update(run, repr(run))
        lines = [repr(run) if run.error or run.throughput is None else str(run.diagnose())]
        if self.before is not None and run.throughput is not None:
            compared = run.compare(self.before)
            lines.append(f"Against the run before ({compared.what}): {compared.verdict}")
        lines += [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
        self.say("\n".join(lines), good=not run.error)
        if run.throughput and self.expected:
            self.prediction.value = status_html(
                f"It came to {run.throughput:,.0f} samples/s. {self.expected}"
            )
        else:
            self._on_change()

    def _on_change(self) -> None:
        """Say at once what the controls would bring, or where they do not go together."""
        try:
            self.forecast(self.next_pipeline)
        except ValueError as error:
            self.prediction.value = status_html(f"These do not go together: {error}")


class FunctionPanel(Panel):
    """Measures one more point of a function at a press, and draws it among those of its grid.

    While a cell waits for the grid, its progress is shown as by a `Display`.
    """

    PRESS = "Measure"
    INSTEAD = "Where no widgets show, change the values in the cell and run it again."

    due = 0.0  # when to draw again, s

    def __init__(self, grid: Grid, source: Source, drawing: dict, measurements: Measurements):
        """Show the rows that a cell waits for; `drawing` as of `plot_measurements`."""
        knobs = [knob_of(name, values, grid.name) for name, values in grid.values.items()]
        controls = {knob.name: control(knob, knob.default) for knob in knobs if knob}
        self.picture = widgets.HTML()
        super().__init__(controls, self.picture)
        self.grid = grid
        self.source = source
        self.drawing = drawing
        self.measurements = measurements  # the grid's rows, and those that were added
        self.add_class("labkit-function")
        self._show_busy(True, in_cell=True)
        display(self)

    def line(self, text: str) -> None:
        """Say how far it is, and draw rows that came, once a second at most."""
        self.say(text)
        if time.monotonic() > self.due:
            self.draw()

    def final(self, text: str) -> None:
        """Show all rows and a `text`, store the picture, and enable the controls."""
        drawn = self.draw()
        self.say(f"{text}. Set other values and press Measure, or edit the cell.")
        if drawn:
            display(drawn)  # for the file
        self._show_busy(False)

    def draw(self) -> Picture | None:
        """Draw the rows as far as they are there, also in words; return the picture."""
        rows = self.measurements.data
        drawn = plot_measurements(rows, **self.drawing)
        if drawn:
            self.picture.value = drawn.html(repr(rows))
        self.due = time.monotonic() + REDRAW_S
        return drawn

    async def _work(self) -> None:
        """Measure the point that the controls ask for, and add it to the picture and the rows."""
        values = {name: values[0] for name, values in self.grid.values.items()} | self.values
        what = as_typed(values)
        self.say(f"Measuring {what} …")
        point = replace(self.grid, values={name: [value] for name, value in values.items()})
        added = launch(point, source=self.source)
        await self.follow(added, lambda _added: None)
        self.measurements.add(added)
        self.draw()
        why = added.error or added.mistake
        self.say(f"{what}: {why or added.numbers}", good=not why)


def knob_of(name: str, values: Sequence[Any], function: str) -> Knob | None:
    """Return an axis of a grid as a knob: numbers are free within a range, others are choices.

    None where its values cannot be listed, such as tensors.
    """
    help_text = f"an argument of {function}()"
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        kind = "float" if float in kinds else "int"
        high = max(1, FURTHER * max(values))
        return Knob(name, kind, values[0], help_text, low=min(1, *values), high=high)
    is_listed = kinds <= {str, int, float, bool, type(None)}
    return Knob(name, "str", values[0], help_text, choices=tuple(values)) if is_listed else None
