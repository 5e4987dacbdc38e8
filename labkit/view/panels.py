"""`lk.panel`: one panel for a pipeline, several ranks or recorded runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.diagnosis.prediction import Prediction
from labkit.knobs import Knob, check_names
from labkit.results.hardware import machine
from labkit.results.launch import launch
from labkit.results.library import Entry, Library, play, recorded
from labkit.results.ranks import Ranks
from labkit.results.result import Table
from labkit.results.run import Run
from labkit.results.script import script
from labkit.spec import KNOBS, Distributed, Pipeline, automatic
from labkit.tuning.job import improver
from labkit.view.controls import Control, in_words
from labkit.view.display import StaticFigure
from labkit.view.ghost import Ghost, expected
from labkit.view.panel import OLD, Asked, Panel, Values, changes
from labkit.view.run_header import busy_of

USUAL_KNOBS = ("num_workers", "prefetch_factor", "batch_size", "io_ms")
SPEEDS = {f"{speed:g}x": speed for speed in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)}
STARVED = "io_ms of rank 1"
OF_RANKS = ("batch_size", "accumulation_steps")  # knobs of the pipeline that a panel of ranks has
IMPROVE_TIP = "Fix what is on top, measure, ask again, until nothing is worth it: at most 12 runs"


def panel(
    what: Pipeline | Distributed | str | Sequence[str] | None = None,
    knobs: Sequence[str] = USUAL_KNOBS,
    **settings: Any,
) -> PipelinePanel | RanksPanel | ReplayPanel:
    """Return widgets to set something up, run it, watch it and compare it with the run before.

    Args:
        what: A Pipeline (the default one where it is left out), a Distributed, or the name or
            names of recorded runs.
        knobs: Of a pipeline: the names of the knobs to show.
        **settings: Of a pipeline: changes to it, as in `pipeline.but(...)`. Of
            recorded runs: `folder`, where `labkit record` wrote them.
    """
    if isinstance(what, Distributed):
        return RanksPanel(what)
    if isinstance(what, str):
        return ReplayPanel(what, **settings)
    if what is not None and not isinstance(what, Pipeline):
        return ReplayPanel(*what, **settings)
    check_names(knobs, KNOBS)
    return PipelinePanel((what or Pipeline()).but(**settings), knobs)


class RunPanel(Panel[Asked, Run]):
    """Widgets whose runs are single ones: of one process, in which one loop trains."""

    def verdict_of(self, run: Run) -> str:
        """Say what limits a run."""
        return run_verdict(run)

    def difference(self, run: Run, before: Run | None, name: str) -> list[str]:
        """Say what was changed, what it brought, and what could not be applied."""
        lines = [f"{knob} was not applied: {why}." for knob, why in run.not_applied.items()]
        if before is None:
            return lines
        what = changes(before.asked.to_dict(), run.asked.to_dict())
        busy = f"{run.machine.kind.upper()} busy {before.busy_text} → {run.busy_text}"
        return [f"Against {name} ({what}): {busy}. {run.compare(before).verdict}", *lines]


class PipelinePanel(RunPanel[Pipeline]):
    """Widgets to set some knobs of a pipeline, with what they would bring, and an autopilot."""

    terminal = "labkit.run()"
    warm = True

    def __init__(self, pipeline: Pipeline, knobs: Sequence[str]):
        self.pipeline = pipeline
        self.ghost = Ghost()
        self._forecasted: tuple[Pipeline, Run] | None = None  # what the prediction is of
        self._found: Prediction | None = None
        controls = {name: Control(KNOBS[name], getattr(pipeline, name)) for name in knobs}
        super().__init__(f"for {', '.join(knobs)}", controls, [self.ghost])
        self.improve_button = self._button("Improve", "magic", self.improve)
        self.improve_button.tooltip = IMPROVE_TIP
        self.buttons.children = (*self.buttons.children, self.improve_button)

    def asked_of(self, values: Values) -> Pipeline:
        """Return the pipeline with these knobs; raises ValueError where they conflict."""
        return self.pipeline.but(**values)

    def launch(self, asked: Pipeline) -> Run:
        """Start a pipeline."""
        return launch(asked)

    def automatic(self, values: Values) -> Values:
        """Return what None stands for here, as far as it is known by now."""
        knobs = self.pipeline.to_dict() | values
        if self.pipeline.device == "cpu" or not machine.cache_info().currsize:  # asking takes 2 s
            return automatic(knobs)
        here = machine()
        return automatic(knobs, here.kind == "gpu", here.cpu_cores or 1)

    def copies(self) -> dict[str, Callable[[], str]]:
        """Return what is asked as a script of plain PyTorch, and as a line of labkit."""
        return {"PyTorch": self.as_pytorch, "labkit": self.as_labkit}

    def as_pytorch(self) -> str:
        """Return what is asked as a script of plain PyTorch, with the numbers it has run with."""
        return str(script(self.measured(self.asked) or self.asked))

    def as_labkit(self) -> str:
        """Return what is asked as a line of labkit."""
        return f"lk.run(lk.{self.asked!r})"

    def forecast(self, asked: Pipeline) -> None:
        """Draw what is expected of `asked` from the last run; about 30 ms."""
        run = self.measured()
        base = None if run is None else (asked, run)
        if base is not None and base == self._forecasted:
            return
        self._forecasted = base
        self._found = None if run is None else expected(run, asked)
        self.view.expected = self.ghost.show(self._found, run)

    def settle(self, run: Run) -> None:
        """Draw what came beside what was predicted."""
        if self._found is not None and self._forecasted is not None:
            self.view.expected = self.ghost.show(self._found, self._forecasted[1], run)
        elif not self._refused:
            self.forecast(self.asked)

    def _refuse(self, why: str) -> None:
        super()._refuse(why)
        (self.ghost.add_class if why else self.ghost.remove_class)(OLD)

    def improve(self) -> None:
        """Let the autopilot (`lk.improve`) change what is asked, and show every step."""
        self._start(self._climb)

    async def _climb(self) -> None:
        """Climb in a thread; the controls, the list and the figure show what was kept."""
        search = improver(self.asked, (), None)
        self.say("The autopilot measures what is set, and then what its verdict advises.")

        def running(run: Run) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt  # as ■ does: the search keeps the best so far
            self.home.call(self.view.follow, run)

        def stepped() -> None:
            self.home.call(self._tell_climb, search.found.table("going on"))

        search.bench.each = running
        search.each = stepped
        ladder = await asyncio.to_thread(search.run)
        for trial in ladder.kept:
            if trial.runs:
                run = trial.runs[-1]
                self.view.finish(run)
                self.history.add(run, trial.what, run.diagnose().bottleneck)
        for name in ladder.changes.keys() & self.controls.keys():
            self.controls[name].value = ladder.changes[name]
        self.say(f"The autopilot is done: {in_words(ladder.stopped)}.")
        self._tell_climb(ladder.table())
        self._draw(StaticFigure.drawn(ladder.plot()))

    def _tell_climb(self, table: Table) -> None:
        self.comparison.value = table._repr_html_()


def run_verdict(run: Run) -> str:
    """Say how busy the device was, what limits the run, and where its loss stopped being one."""
    gone = [] if run.watched else [step for step, loss in enumerate(run.loss) if loss != loss]
    nan = f" The loss is NaN from step {gone[0]} on: see notebook 05." if gone else ""
    return f"{busy_of(run)}. {run.diagnose()}{nan}"


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
        delay = replace(KNOBS["io_ms"], name=STARVED)
        controls[STARVED] = Control(delay, 0, (0, 0.5, 2, 5))
        super().__init__("of ranks", controls, [])

    def asked_of(self, values: Values) -> Distributed:
        """Return the ranks with these knobs; raises ValueError where they conflict."""
        own = {name: values[name] for name in self.base.knobs}
        pipeline = self.base.pipeline.but(**{name: values[name] for name in OF_RANKS})
        delay = values[STARVED]
        starve = {1: {"io_ms": delay}} if delay else self.base.starve
        return self.base.but(pipeline=pipeline, starve=starve, **own)

    def launch(self, asked: Distributed) -> Ranks:
        """Start several ranks."""
        return launch(asked)

    def difference(self, run: Ranks, before: Ranks | None, name: str) -> list[str]:
        """Return the numbers of both."""
        lines = [] if before is None else [f"{name}: {before.numbers}"]
        return [*lines, f"now: {run.numbers}"]

    def picture(self, run: Ranks) -> StaticFigure:
        """Draw all ranks: the view shows the first."""
        return StaticFigure.of(run)


class ReplayPanel(RunPanel[tuple[Path, float]]):
    """Widgets to choose a recorded run, play it at a chosen speed and see it diagnosed.

    The choice is among `names`, or all, of the package's or of the `folder` that `labkit record`
    wrote. Raises ValueError on an unknown name.
    """

    terminal = "labkit.recorded()"
    hint = "Nothing here is measured: these runs were RECORDED. Choose one and press Play."
    button = "Play"
    keeps = False

    def __init__(self, *names: str, folder: str | os.PathLike[str] | None = None):
        listed = recorded(folder=folder)
        assert isinstance(listed, Library)  # of all names
        check_names(names, dict.fromkeys(entry.name for entry in listed), "record")
        self.chosen: list[Entry] = []
        for entry in listed:
            if not entry.experiment and (not names or entry.name in names):
                self.chosen.append(entry)
        if not self.chosen:
            raise ValueError("There is no recorded run to play.")
        places = {}
        for place, entry in enumerate(self.chosen):
            places[f"{entry.name} · {entry.title} · {entry.hardware}"] = place
        which = Knob("recorded run", "int", 0, "which of them to play")
        pace = Knob("speed", "float", 1.0, "times the pace at which it was recorded")
        controls = {
            "recorded run": Control(which, 0, places),
            "speed": Control(pace, 1.0, SPEEDS),
        }
        super().__init__(f"of {len(self.chosen)} recorded runs", controls, [])

    def asked_of(self, values: Values) -> tuple[Path, float]:
        """Return the record and its speed."""
        return self.chosen[values["recorded run"]].path, values["speed"]

    def launch(self, asked: tuple[Path, float]) -> Run:
        """Play a record."""
        path, speed = asked
        return play(path, speed)
