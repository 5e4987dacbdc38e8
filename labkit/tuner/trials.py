"""Measuring one setting: an isolated run, as long as it needs and no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.analysis.facts import cores_used
from labkit.analysis.thresholds import FOREIGN_LOAD
from labkit.results.launch import launch
from labkit.spec import Pipeline
from labkit.tuner.search import Measured
from labkit.tuner.setting import Setting
from labkit.tuner.source import Source

FEWEST_STEPS = 24  # behind the warm-up; with fewer, throughput is a guess
LONGEST_S = 30.0  # of one run
ENDLESS = 1_000_000  # steps: the clock ends a run, so that its queues never run dry
PATIENCE = 3  # runs that may be made again because others used the cores meanwhile


class Bench:
    """Runs settings of one pipeline, or of one source, for about `seconds` each.

    Attributes:
        disturbed: The share of all cores that other programs used, of runs where it was much.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source | None,
        seconds: float,
        each: Callable[[Any], None] | None = None,
        patience: int = PATIENCE,
    ):
        self.pipeline, self.source, self.seconds, self.each = pipeline, source, seconds, each
        self.patience, self.count = patience, 0
        self.disturbed: list[float] = []

    def measure(self, setting: Setting, rate: float | None) -> Measured:
        """Run `setting` once; once more, and longer, where a run of unknown rate was too short."""
        run = self._calm_run(setting, self._seconds(setting, rate))
        if run.error or run.outcome != "finished":
            return Measured(None, run.error or run.outcome, run)
        wanted = FEWEST_STEPS + setting.in_flight
        if run.steps < wanted and rate is None:
            slow = run.throughput or run.samples / self.seconds or 1.0
            run = self._calm_run(setting, self._seconds(setting, slow))
        if run.error or run.throughput is None:
            why = run.error or f"only {run.steps} batches in {LONGEST_S:.0f} s: too slow to measure"
            return Measured(None, why, run)
        return Measured(run.throughput, None, run)

    def _seconds(self, setting: Setting, rate: float | None) -> float:
        """Return how long to run: the queues are filled first, and that does not count."""
        if not rate:
            return self.seconds
        batch_s = setting.batch_size / rate
        needed = max(self.seconds, FEWEST_STEPS * batch_s)
        return min(LONGEST_S, needed + min(2 * self.seconds, setting.in_flight * batch_s))

    def _calm_run(self, setting: Setting, seconds: float) -> Any:
        """Run it; again, where other programs took the cores, and keep the calmer of the two."""
        run = self._run(setting, seconds)
        if taken_by_others(run) > FOREIGN_LOAD and self.patience and not run.error:
            self.patience -= 1
            again = self._run(setting, seconds)
            run = run if again.error else min(run, again, key=taken_by_others)
        if taken_by_others(run) > FOREIGN_LOAD:
            self.disturbed.append(taken_by_others(run))
        return run

    def _run(self, setting: Setting, seconds: float) -> Any:
        knobs = setting.to_dict() | {"steps": ENDLESS, "seconds": seconds, "xray": False}
        if self.source is not None:  # other items each time: none is in the cache from before
            knobs["seed"] = self.pipeline.seed + self.count
        self.count += 1
        bare = self.pipeline.but(num_workers=0, prefetch_factor=None, persistent_workers=False)
        run = launch(bare.but(**knobs), source=self.source)
        try:
            return run.wait(each=self.each)
        finally:
            if self.source is not None:
                self.source.forget(run.path)


def taken_by_others(run: Any) -> float:
    """Return the share of all cores that other programs used while it ran; 0 where not known."""
    _, foreign = cores_used(run)
    return (foreign or 0.0) / (run.machine.cpu_cores or 1)
