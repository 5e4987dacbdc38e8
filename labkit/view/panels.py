"""`lk.panel`: one panel for a pipeline or for several ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from labkit.diagnosis.findings import gain_without
from labkit.diagnosis.prediction import Prediction
from labkit.diagnosis.verdict import Diagnosis
from labkit.knobs import Settings, check_names
from labkit.results.ranks import Ranks
from labkit.results.result import Table
from labkit.results.run import Run
from labkit.results.script import script
from labkit.spec import KNOBS, Distributed, Pipeline
from labkit.tuning.set_up import improver
from labkit.view.controls import Control, knobs_in_words, shown
from labkit.view.display import StaticFigure
from labkit.view.panel import Panel
from labkit.view.panel_parts import fade
from labkit.view.prediction_bar import PredictionBar, expected
from labkit.view.run_header import busy_of
from labkit.view.running import pipeline_with

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
IMPROVE_TIP = "Fix what is on top, measure, ask again, until nothing is worth it: at most 12 runs"
STARVED = "io_ms of rank 1"
OF_RANKS = ("batch_size", "accumulation_steps")  # knobs of the pipeline that a panel of ranks has


def panel(
    what: Pipeline | Distributed | None = None,
    knobs: Sequence[str] = USUAL_KNOBS,
    **settings: object,
) -> PipelinePanel | RanksPanel:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        what: A Pipeline (the default one where it is left out), or a Distributed.
        knobs: Of a pipeline: the names of the knobs to show.
        **settings: Of a pipeline: changes to it, as in `pipeline.but(...)`.
    """
    if isinstance(what, Distributed):
        return RanksPanel(what)
    check_names(knobs, KNOBS)
    return PipelinePanel(pipeline_with(what, settings), knobs)


class PipelinePanel(Panel[Pipeline, Run]):
    """Widgets to set some knobs of a pipeline, with what they would bring."""

    terminal = "labkit.run()"
    warm = True

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        self.pipeline = pipeline
        self.bars = PredictionBar()
        self._forecasted: tuple[Pipeline, Run] | None = None  # what was predicted, from which run
        self._found: Prediction | None = None
        controls = {name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        super().__init__(f"for {', '.join(knobs)}", controls, [self.bars])
        self.improve_button = self.buttons.add("Improve", "magic", self.improve)
        self.improve_button.tooltip = IMPROVE_TIP

    def asked_of(self, values: Settings) -> Pipeline:
        """Return the pipeline with these knobs; raises ValueError where they conflict."""
        return self.pipeline.but(**values)

    def verdict_of(self, run: Run) -> str:
        """Say what limits a run."""
        return run_verdict(run)

    def difference(self, run: Run, before: Run | None, name: str) -> list[str]:
        """Say what was changed, what it brought, and what could not be applied."""
        lines = [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
        if before is None:
            return lines
        old = before.asked.to_dict()
        moved = []
        for knob, value in run.asked.to_dict().items():
            if value != old[knob]:
                moved.append(f"{knob} {shown(old[knob])} → {shown(value)}")
        what = ", ".join(moved) or "nothing changed"
        busy = f"{run.machine.kind.upper()} busy {before.busy_text} → {run.busy_text}"
        return [f"Against {name} ({what}): {busy}. {run.compare(before).verdict}", *lines]

    def copies(self) -> dict[str, Callable[[], str]]:
        """Return what is asked as plain PyTorch, with the numbers it ran with, and as labkit."""
        return {
            "PyTorch": lambda: str(script(self.measured(self.asked) or self.asked)),
            "labkit": lambda: f"lk.run(lk.{self.asked!r})",
        }

    def forecast(self, asked: Pipeline) -> None:
        """Draw what is expected of `asked` from the last run; about 30 ms."""
        run = self.measured()
        base = None if run is None else (asked, run)
        if base is not None and base == self._forecasted:
            return
        self._forecasted = base
        self._found = None if run is None else expected(run, asked)
        self.view.expected = self.bars.show(self._found, run)

    def settle(self, run: Run) -> None:
        """Draw what came beside what was predicted."""
        if self._found is not None and self._forecasted is not None:
            self.view.expected = self.bars.show(self._found, self._forecasted[1], run)
        elif not self._refused:
            self.forecast(self.asked)

    def _refuse(self, why: str) -> None:
        super()._refuse(why)
        fade(self.bars, bool(why))

    def improve(self) -> None:
        """Let the autopilot (`lk.improve`) change what is asked, and show every step."""
        self._start(self._climb)

    async def _climb(self) -> None:
        """Climb in a thread; the controls and the list show what was kept."""
        search = improver(self.asked, (), None)
        self.verdict.say("The autopilot measures what is set, and then what its verdict advises.")

        def running(run: Run) -> None:
            if self.session.stopping:
                raise KeyboardInterrupt  # as ■ does: the search keeps the best so far
            self.home.call(self.view.follow, run)

        def stepped() -> None:
            self.home.call(self._tell_climb, search.found.table("going on"))

        search.tell(stepped, running)
        ladder = await asyncio.to_thread(search.run)
        for trial in ladder.kept:
            if trial.runs:
                run = trial.runs[-1]
                self.view.finish(run)
                self.history.add(run, trial.what, run.diagnose().bottleneck)
        for name in ladder.changes.keys() & self.controls.keys():
            self.controls[name].value = ladder.changes[name]
        self.verdict.say(f"The autopilot is done: {knobs_in_words(ladder.stopped)}.")
        self._tell_climb(ladder.table())

    def _tell_climb(self, table: Table) -> None:
        self.comparison.value = table._repr_html_()


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and from which step its loss is NaN."""
    gone = [] if run.watched else [step for step, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    found = run.diagnose()
    return f"{busy_of(run)}. {found}{_headroom(run, found)}{nan}"


def _headroom(run: Run, found: Diagnosis) -> str:
    """Say what the loop would do if it never waited for data, at the pace of its steps now."""
    if found.bottleneck != "input" or not run.throughput:
        return ""
    perfect = run.throughput * gain_without(found.findings[0].lost_share)
    return f"\nWith a perfect loader: about {perfect:,.0f} samples/s."


class RanksPanel(Panel[Distributed, Ranks]):
    """Widgets to run a pipeline on several ranks: how many, their batches, one starved."""

    terminal = "labkit.distributed()"

    def __init__(self, base: Distributed):
        self.base = base
        controls = {}
        for name in base.knobs:
            controls[name] = Control(Distributed.knobs[name], getattr(base, name))
        for name in OF_RANKS:
            controls[name] = Control(KNOBS[name], getattr(base.pipeline, name))
        delay = replace(KNOBS["io_ms"], name=STARVED, auto="", choices=(0, 0.5, 2, 5))
        controls[STARVED] = Control(delay, 0)
        super().__init__("of ranks", controls)

    def asked_of(self, values: Settings) -> Distributed:
        """Return the ranks with these knobs; raises ValueError where they conflict."""
        own = {name: values[name] for name in self.base.knobs}
        pipeline = self.base.pipeline.but(**{name: values[name] for name in OF_RANKS})
        delay = values[STARVED]
        starve = {1: {"io_ms": delay}} if delay else self.base.starve
        return self.base.but(pipeline=pipeline, starve=starve, **own)

    def difference(self, run: Ranks, before: Ranks | None, name: str) -> list[str]:
        """Return the numbers of both."""
        lines = [] if before is None else [f"{name}: {before.numbers}"]
        return [*lines, f"now: {run.numbers}"]

    def picture(self, run: Ranks) -> StaticFigure:
        """Draw all ranks: the view shows the first."""
        return StaticFigure.of(run)
