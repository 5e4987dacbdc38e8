"""`lk.panel`: a pipeline's knobs, Run, Stop, the live view, a verdict and a comparison."""

from __future__ import annotations

import asyncio
import html
import math
from collections.abc import Sequence

import ipywidgets as widgets

from labkit.api import Run, launch
from labkit.diagnosis.findings import gain_without
from labkit.knobs import check_names
from labkit.prediction.prediction import Prediction, predict
from labkit.results.core_use import CoreUse
from labkit.results.hardware import check_device
from labkit.spec import KNOBS, Pipeline
from labkit.view.controls import Control, shown
from labkit.view.live import LiveView
from labkit.view.panel import Panel
from labkit.view.run_header import busy_of, device_of
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

    def run_of(self, **values: int | float | str | None) -> Run:
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
        """Run, from the press of the button to the last figure."""
        await asyncio.to_thread(check_device, self.asked.device)  # or the kernel waits for torch
        run, before = self._begin()
        await self.follow(run, self.view.follow)
        self._show(run, before)

    def launch(self, asked: Pipeline) -> Run:
        """Start what is asked."""
        return launch(asked)

    def _begin(self) -> tuple[Run, Run | None]:
        """Start what is asked; return the run and the one before it that has numbers."""
        asked = self.asked
        before = self.measured()
        run = self.launch(asked)
        self.view.show_before(before)
        self.say("Running …")
        self.forecast(asked)
        self.runs.append(run)
        return run, before

    # What is shown

    def forecast(self, asked: Pipeline) -> None:
        """Say and draw what is expected of `asked` from the last run; about 30 ms."""
        run = self.measured()
        self._found = None if run is None else expected(run, asked)
        self._say_expected(run)

    def _say_expected(self, before: Run | None, came: Run | None = None) -> None:
        """Say and draw what was expected, from the run before it, and what came of it."""
        found = self._found
        self._say_above(in_words(found, before, came))
        self.view.expected = []
        if found and found.utilization_range:
            low, high = found.utilization_range
            self.view.expected = [low, found.utilization, high]

    def _say_above(self, text: str) -> None:
        """Show a sentence on what the controls ask for."""
        said = html.escape(text)
        self.bars.value = f"<div class='labkit-said' role='status'>{said}</div>"

    def _show(self, run: Run, before: Run | None) -> None:
        """Show how `run` ended, what differs from the one before, and what had been predicted."""
        self.view.update(run, ended=True)
        if run.error:
            said = run.error
        elif run.throughput is not None:
            said = run_verdict(run)
        else:
            said = f"{run.outcome.capitalize()}: too short to tell."
        self.say("\n".join([said, *differences(run, before)]), good=not run.error)
        if run.throughput and self._found is not None:
            self._say_expected(before, run)
        elif not self.refused:
            self.forecast(self.asked)

    def _changed(self) -> None:
        """Say at once what the controls would bring, or where they do not go together."""
        self.refused = False
        try:
            asked = self.asked
        except ValueError as error:
            self.refused = True
            self._say_above(f"These do not go together: {error}")
        else:
            if not self.running:
                self.forecast(asked)
        self.run_button.disabled = self.refused or self.running


def run_verdict(run: Run) -> str:
    """Say how busy the device was, and what limits the run."""
    found = run.diagnose()
    said = f"{busy_of(run)}. {found}"
    if found.bottleneck == "input" and run.throughput:
        perfect = run.throughput * gain_without(found.findings[0].lost_share)
        said += f"\nWith a perfect loader: about {perfect:,.0f} samples/s."
    return said


def differences(run: Run, before: Run | None) -> list[str]:
    """Say what was changed, what it brought, and what could not be applied."""
    lines = [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
    if before is None or run.throughput is None:
        return lines
    compared = run.compare(before)
    moved = [f"{knob} {shown(old)} → {shown(new)}" for knob, (old, new) in compared.changed.items()]
    what = ", ".join(moved) or "nothing changed"
    busy = f"{device_of(run)} busy {before.busy_text} → {run.busy_text}"
    return [f"Against the run before ({what}): {busy}. {compared.verdict}", *lines]


def expected(run: Run, asked: Pipeline) -> Prediction | None:
    """Predict what `asked` would bring from what `run` measured; None where nothing differs."""
    old = run.asked.to_dict()
    changes = {name: value for name, value in asked.to_dict().items() if value != old[name]}
    return predict(run, **changes) if changes else None


def in_words(found: Prediction | None, before: Run | None, came: Run | None = None) -> str:
    """Say what was `found` from the run `before`, and what came of it."""
    if before is None:
        return BEFORE_ANY
    if found is None:
        return UNMOVED
    if not found.throughput or not found.throughput_range or not found.utilization_range:
        return f"No prediction: {found.why}."
    low, high = found.throughput_range
    if came is not None:
        measured = came.throughput or 0.0
        said = f"{'inside' if low <= measured <= high else 'outside'} the range"
        if CoreUse.of(came).is_shared:
            said = "not comparable: other programs used the cores"
        return f"Predicted {found.throughput:,.0f}, came {measured:,.0f} samples/s: {said}."
    least, most = found.utilization_range
    gain = found.throughput / (before.throughput or math.inf)
    rate = f"{found.throughput:,.0f} ({low:,.0f} to {high:,.0f}) samples/s"
    busy = f"busy {found.utilization:.0%} ({least:.0%} to {most:.0%})"
    return f"Expected: {gain:.2g}x the last run, {rate}, {busy}; limit: {found.limit}."
