"""A trial: the settings that were run, and what was measured; and what runs those of a pipeline.

Settings are knobs, as a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from labkit.api import Run, launch
from labkit.instruments.loader_knobs import in_flight
from labkit.knobs import Settings, as_typed
from labkit.results.core_use import CoreUse
from labkit.results.payload import Source
from labkit.spec import KNOBS, LOADER_KNOBS, LOOKS_S, PYTORCH_PREFETCH, WITHOUT_WORKERS, Pipeline

TIE = 0.03  # throughputs closer than this are the same: repeats of one run differ by more
FEWEST_STEPS = 24  # after the warm-up; with fewer, the throughput is a guess
FEWEST_FIRST = 6  # steps of the first run, from which the time for the others is known
LONGEST_S = 30.0  # s, of one run
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry


def of_loader(knobs: Settings) -> Settings:
    """Return a DataLoader's arguments among knobs, those that are missing at their defaults.

    Without workers, the arguments that need them are dropped.
    """
    found = {name: knobs.get(name, KNOBS[name].default) for name in LOADER_KNOBS}
    if not found["num_workers"]:
        return found | WITHOUT_WORKERS
    return found | {"prefetch_factor": found["prefetch_factor"] or PYTORCH_PREFETCH}


def cost(knobs: Settings) -> tuple[int, int, bool]:
    """Sort settings from cheap to dear: by workers, then by samples that wait in RAM."""
    return knobs["num_workers"], in_flight(knobs) * knobs["batch_size"], knobs["pin_memory"]


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    rate: float | None = None  # samples/s
    error: str | None = None  # why there is no rate
    run: Run | None = None  # of the bench
    seconds: float = 0.0  # that it took, from its start to its end
    others: float = 0.0  # share of the cores that other programs used meanwhile


@dataclass(eq=False)
class Trial:
    """Settings that were tried, and what became of them."""

    knobs: Settings
    changes: Settings = field(default_factory=dict)  # the knobs that differ from those before it
    outcomes: list[Outcome] = field(default_factory=list, repr=False)  # one for each run

    @classmethod
    def changing(cls, before: Settings, knobs: Settings) -> Trial:
        """Return the trial of the knobs `before` with those of `knobs` in their place."""
        changes = {name: value for name, value in knobs.items() if value != before.get(name)}
        return cls(before | knobs, changes)

    @property
    def has_ready_batches(self) -> bool:
        """Whether its batches are ready: it says what could be gained, nobody can set it."""
        return "ready" in self.knobs

    @property
    def workers(self) -> int:
        """The loader's workers."""
        return self.knobs["num_workers"]

    @property
    def rates(self) -> list[float]:
        """The throughput of each run that came to one, samples/s."""
        return [each.rate for each in self.outcomes if each.rate]

    @property
    def rate(self) -> float:
        """Median throughput, samples/s; 0 where no run gave a number."""
        return median(self.rates or [0.0])

    @property
    def error(self) -> str | None:
        """Why its last run gave no number."""
        return self.outcomes[-1].error if self.outcomes else None

    @property
    def what(self) -> str:
        """The change in words."""
        if self.has_ready_batches:
            return "ready batches"
        named = {name: value for name, value in self.changes.items() if value is not None}
        return as_typed(named) or "start"


def cheapest_of_fastest(trials: Iterable[Trial]) -> Trial | None:
    """Return the cheapest of the trials that tie with the fastest; None where none has a number."""
    measured = [
        each for each in trials if each.rates and not each.error and not each.has_ready_batches
    ]
    fastest = max((trial.rate for trial in measured), default=0.0)
    tied = [trial for trial in measured if trial.rate >= (1 - TIE) * fastest]
    return min(tied, key=lambda trial: (*cost(trial.knobs), len(trial.changes)), default=None)


class TrialBench:
    """Runs knobs of one pipeline, or of one source, for about `seconds` each."""

    epochs = True  # workers are kept from one epoch to the next

    def __init__(
        self, pipeline: Pipeline, source: Source | None, seconds: float, look: bool = False
    ):
        """With `look`, take the x-ray too and the same items each time, so that losses compare."""
        self.pipeline = pipeline
        self.source = source
        self.seconds = seconds
        self.look = look
        self.count = 0  # runs that were made
        self.each: Callable[[Run], object] | None = None  # called with the run that is going on

    def measure(self, knobs: Settings, rate: float | None, whole: bool = False) -> Outcome:
        """Run knobs; once more, and longer, where a run of unknown rate was too short.

        `rate` are the samples/s that are expected. Every run is a whole one.
        """
        run = self._run(knobs, rate)
        is_short = run.steps < FEWEST_FIRST + in_flight(knobs)
        if run.outcome == "finished" and not rate and is_short:
            run = self._run(knobs, run.throughput or run.samples / self.seconds or 1.0)
        error = None
        if run.outcome != "finished":
            error = run.error or run.outcome
        elif not run.throughput:
            error = f"only {run.steps} batches in {LONGEST_S:.0f} s: too slow to measure"
        others = 0.0 if error else CoreUse.of(run).others_share
        return Outcome(None if error else run.throughput, error, run, others=others)

    def _run(self, knobs: Settings, rate: float | None) -> Run:
        """Run knobs once, for longer the slower they are: the queues that fill do not count."""
        seconds = self.seconds + LOOKS_S * self.look
        if rate:
            batch_s = knobs["batch_size"] / rate
            filling_s = min(2 * self.seconds, in_flight(knobs) * batch_s)
            seconds = min(LONGEST_S, max(seconds, FEWEST_STEPS * batch_s) + filling_s)
        changes = knobs | {"steps": ENDLESS, "seconds": seconds, "xray": self.look}
        if self.source is not None:  # other items each time: none is in the cache from before
            changes["seed"] = self.pipeline.seed + self.count
        self.count += 1
        started = launch(self.pipeline.but(**changes), source=self.source)
        return started.wait_or_raise(self.each)
