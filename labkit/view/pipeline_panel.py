"""`lk.panel`: a pipeline's knobs, Run, Stop, the live view, a verdict and a comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ipywidgets as widgets

from labkit.api import Run, launch
from labkit.knobs import Setting, check_names
from labkit.prediction.prediction import Prediction, predict
from labkit.results.hardware import check_device
from labkit.spec import KNOBS, Pipeline
from labkit.view.controls import Control
from labkit.view.live import LiveView
from labkit.view.panel import Panel, said
from labkit.view.run_header import busy_of, changes
from labkit.view.running import pipeline_with

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
IN_PLACE = "Where no widgets show, use labkit.run(): it leaves a picture and a table."
BEFORE_ANY = "Run once: from then on this line says what a slider would bring, before you run it."
UNMOVED = "Move a slider: this line says what it would bring, before you run it."


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


class PipelinePanel(Panel):
    """Widgets to set some knobs of a pipeline and run it. `.run` is the last run, `.runs` all."""

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        controls = {name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        super().__init__(f"labkit panel for {', '.join(knobs)}", IN_PLACE, controls, "Run")
        self.pipeline = pipeline
        self.runs: list[Run] = []  # oldest first
        self.opened_with = self.values
        self.bars = widgets.HTML()
        self.bars.add_class("labkit-bars")
        self._found: Prediction | None = None  # what is expected of the controls
        self.view = LiveView()
        self.assemble([], [self.bars, self.view])
        self.say("Set the knobs and press Run.")
        self._changed()

    # What is asked, and what has run

    @property
    def asked(self) -> Pipeline:
        """The pipeline that Run would start; raises ValueError where the controls conflict."""
        return self.pipeline.but(**self.values)

    @property
    def run(self) -> Run | None:
        """The last run, which may still be going on; None before the first."""
        return self.runs[-1] if self.runs else None

    def measured(self, asked: Pipeline | None = None) -> Run | None:
        """Return the last run that has numbers, or that of what was `asked`; None without one."""
        for run in reversed(self.runs):
            if not run.running and run.throughput is not None and asked in (None, run.asked):
                return run
        return None

    # Run and Stop

    def run_of(self, **values: Setting) -> Run:
        """Return the last run with the controls as the panel opened, but for `values`.

        Where Run was not pressed for it, it is measured now, in this panel. Raises ValueError on
        a bad value.
        """
        check_names(values, self.controls)
        wanted = self.opened_with | values
        if self.running and self.run:
            self.run.wait()
        known = self.measured(self.pipeline.but(**wanted))
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

    async def _once(self) -> None:
        await asyncio.to_thread(check_device, self.asked.device)  # or the kernel waits for torch
        run, before = self._begin()
        await self.follow(run, self.view.follow)
        self._show(run, before)

    def launch(self, asked: Pipeline) -> Run:
        """Start what is asked."""
        return launch(asked)

    def _begin(self) -> tuple[Run, Run | None]:
        """Start what is asked; return the run and the one before it that has numbers."""
        before = self.measured()
        run = self.launch(self.asked)
        self.view.show_before(before)
        self.say("Running …")
        self.forecast(self.asked)
        self.runs.append(run)
        return run, before

    # What is shown

    def forecast(self, asked: Pipeline) -> None:
        """Say and draw what is expected of `asked` from the last run; about 30 ms."""
        run = self.measured()
        found = None
        if run is not None:
            old = run.asked.to_dict()
            moved = {name: v for name, v in asked.to_dict().items() if v != old[name]}
            found = predict(run, **moved) if moved else None
        self._found = found
        self.view.expected = []
        if found and found.utilization_range:
            low, high = found.utilization_range
            self.view.expected = [low, found.utilization, high]
        self.bars.value = said(BEFORE_ANY if run is None else in_words(found, run))

    def _show(self, run: Run, before: Run | None) -> None:
        """Show how `run` ended, what differs from the one before, and what had been predicted."""
        self.view.update(run, ended=True)
        lines = [run.error or f"{run.outcome.capitalize()}: too short to tell."]
        if run.throughput is not None and not run.error:
            lines = [f"{busy_of(run)}. {run.diagnose()}"]
        if before is not None and run.throughput is not None:
            compared = run.compare(before)
            busy = f"busy {before.busy_text} → {run.busy_text}"
            what = f"Against the run before ({changes(compared)})"
            lines.append(f"{what}: {busy}. {compared.verdict}")
        lines += [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
        self.say("\n".join(lines), good=not run.error)
        found = self._found
        if run.throughput and found and found.throughput_range:
            low, high = found.throughput_range
            where = "inside" if low <= run.throughput <= high else "outside"
            came = f"came {run.throughput:,.0f} samples/s: {where} the range."
            self.bars.value = said(f"Predicted {found.throughput:,.0f}, {came}")
        elif not self.refused:
            self.forecast(self.asked)

    def _changed(self) -> None:
        """Say at once what the controls would bring, or where they do not go together."""
        self.refused = False
        try:
            asked = self.asked
        except ValueError as error:
            self.refused = True
            self.bars.value = said(f"These do not go together: {error}")
        else:
            if not self.running:
                self.forecast(asked)
        self._show_busy(self.running)


def in_words(found: Prediction | None, before: Run) -> str:
    """Say what was `found` from the run `before`."""
    if found is None:
        return UNMOVED
    if not found.throughput or not found.throughput_range or not found.utilization_range:
        return f"No prediction: {found.why}."
    low, high = found.throughput_range
    least, most = found.utilization_range
    gain = found.throughput / (before.throughput or found.throughput)
    rate = f"{found.throughput:,.0f} ({low:,.0f} to {high:,.0f}) samples/s"
    busy = f"busy {found.utilization:.0%} ({least:.0%} to {most:.0%})"
    return f"Expected: {gain:.2g}x the last run, {rate}, {busy}; limit: {found.limit}."
