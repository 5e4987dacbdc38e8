"""Runs knobs on a pipeline or on the reader's own data, in a process of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import cast

import numpy as np

from labkit.diagnosis.run_costs import cores_used
from labkit.diagnosis.thresholds import FOREIGN_LOAD
from labkit.process import launcher
from labkit.results.launch import launch
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.tuning.proposals import CLOSE
from labkit.tuning.settings import Knobs, LoaderSetting
from labkit.tuning.source import Source
from labkit.tuning.trial import Outcome

FEWEST_STEPS = 24  # behind the warm-up; with fewer, throughput is a guess
FEWEST_FIRST = 6  # of the first run, which is there to predict from
PRECISE = 0.03  # of the throughput, two standard errors: longer tells nothing more
BLOCKS = 8  # stretches of a run whose spread gives its standard error
LONGEST_S = 30.0  # of one run
LOOK_S = 1.2  # of a run, which its x-ray and the handing over of a batch take off
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry
STAMP_END = 5  # column of `Run.stamps`: the end of a step


class TrialBench:
    """Runs knobs of one pipeline, or of one source, for about `seconds` each."""

    def __init__(
        self, pipeline: Pipeline, source: Source | None, seconds: float, look: bool = False
    ):
        """With `look`, take the x-ray too and the same items each time, so that losses compare."""
        self.pipeline = pipeline
        self.source = source
        self.seconds = seconds
        self.look = look
        self.count = 0  # runs that were made
        self.fastest = 0.0  # samples/s of the best of them
        self.disturbed: list[float] = []  # the share of the cores that others took, where much
        self.each: Callable[[Run], object] | None = None  # called with the run that is going on

    def measure(self, knobs: Knobs, rate: float | None) -> Outcome:
        """Run knobs; once more, and longer, where a run of unknown rate was too short."""
        run = self._run(knobs, rate)
        is_short = run.steps < FEWEST_FIRST + LoaderSetting.of(knobs).in_flight
        if run.outcome == "finished" and rate is None and is_short:
            run = self._run(knobs, run.throughput or run.samples / self.seconds or 1.0)
        if run.outcome != "finished" and not (run.outcome == "stopped" and run.throughput):
            return Outcome(None, run.error or run.outcome, run)
        if not run.throughput:
            slow = f"only {run.steps} batches in {LONGEST_S:.0f} s: too slow to measure"
            return Outcome(None, slow, run)
        self.fastest = max(self.fastest, run.throughput)
        return Outcome(run.throughput, None, run)

    def _run(self, knobs: Knobs, rate: float | None) -> Run:
        """Run knobs once."""
        setting = LoaderSetting.of(knobs)
        changes = knobs | {"steps": ENDLESS, "seconds": self._seconds(setting, rate), "xray": False}
        if self.look:
            changes |= {"xray": True, "seconds": self._seconds(setting, rate) + LOOK_S}
        elif self.source is not None:  # other items each time: none is in the cache from before
            changes["seed"] = self.pipeline.seed + self.count
        self.count += 1

        def each(run: Run) -> None:
            if self.each:
                self.each(run)
            if rate and not self.look and self._is_decided(run, setting):
                run.stop()

        started = launch(self.pipeline.but(**changes), source=self.source)
        run = cast("Run", started).wait_or_raise(each)
        if not self.look:
            warm_up()
        foreign_load = (cores_used(run)[1] or 0.0) / (run.machine.cpu_cores or 1)
        if foreign_load > FOREIGN_LOAD:
            self.disturbed.append(foreign_load)
        return run

    def _seconds(self, setting: LoaderSetting, rate: float | None) -> float:
        """Return how long to run; the queues are filled first, and that does not count."""
        if not rate:
            return self.seconds
        batch_s = setting.batch_size / rate
        filling_s = min(2 * self.seconds, setting.in_flight * batch_s)
        return min(LONGEST_S, max(self.seconds, FEWEST_STEPS * batch_s) + filling_s)

    def _is_decided(self, run: Run, setting: LoaderSetting) -> bool:
        """Return whether more steps would tell nothing: the rate is known, or below the best."""
        if run.steps < FEWEST_STEPS + setting.in_flight:
            return False
        ends = run.stamps[run.warmup - 1 :, STAMP_END]
        if ends[-1] - ends[0] < self.seconds / 2:
            return False
        blocks = [part.mean() for part in np.array_split(np.diff(ends), BLOCKS)]
        step_s = float(np.mean(blocks))
        error = 2 * float(np.std(blocks, ddof=1)) / math.sqrt(BLOCKS) / step_s
        most = (1 + error) * setting.batch_size / step_s
        return error < PRECISE or most < (1 - CLOSE) * self.fastest


def warm_up() -> None:
    """Have the next run's process import torch while something is found out here."""
    if os.environ.get("LABKIT_WARM") != "0":
        launcher.stand_by(forced=True)
