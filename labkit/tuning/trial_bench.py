"""Runs knobs on a pipeline or on the user's own data, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

from labkit.api import Run, launch
from labkit.instruments.loader_knobs import in_flight
from labkit.knobs import Settings
from labkit.results.core_use import CoreUse
from labkit.results.payload import Source
from labkit.spec import Pipeline
from labkit.tuning.trial import Outcome

FEWEST_STEPS = 24  # after the warm-up; with fewer, the throughput is a guess
FEWEST_FIRST = 6  # steps of the first run, from which the time for the others is known
LONGEST_S = 30.0  # s, of one run
LOOK_S = 1.2  # s that the x-ray and measuring the hand-over of a batch take of a run
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry


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
        seconds = self.seconds + LOOK_S * self.look
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
