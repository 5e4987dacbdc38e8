"""The search over knobs: propose a trial, run it, judge it, until nothing is worth another run.

It only decides. What runs, predicts and refuses is given to it, so that a test can give it others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from labkit.results.run import Run
from labkit.tuning.proposals import CLOSE, LoaderProposals
from labkit.tuning.result import Found, Tuning
from labkit.tuning.settings import Knobs
from labkit.tuning.trial import Outcome, Trial

MOST_TRIED = 4  # loader settings measured, the baseline included
MORE = 2  # trials on top, where one has contradicted its prediction
NEIGHBOURS = 2  # of the best number of workers, measured before the search ends
RUNS_EACH = 3  # of the baseline and of the best, where they are close
SURE = 0.10  # a gain above this needs no second measurement

Result = TypeVar("Result", bound=Found)


class Runner(Protocol):
    """Runs knobs."""

    count: int  # runs that were made
    each: Callable[[Run], object] | None  # called with the run that is going on

    def measure(self, knobs: Knobs, rate: float | None) -> Outcome:
        """Run knobs; `rate` are the samples/s that are expected."""
        ...


def do_nothing() -> None:
    """Do nothing after a trial."""


class Search(Generic[Result]):
    """A search that fills its result as it goes."""

    def __init__(self, found: Result, bench: Runner):
        """Set up a search; nothing runs yet."""
        self.found = found
        self.bench = bench
        self.each: Callable[[], None] = do_nothing  # called when a trial has been judged

    def propose(self) -> Trial | None:
        """Return the next trial; None where the search is over."""
        raise NotImplementedError

    def judge(self, trial: Trial) -> None:
        """Decide what becomes of a trial that has run."""

    def finish(self) -> None:
        """Decide what needs another measurement, and which trial to take."""

    def run(self) -> Result:
        """Search to the end; raises RuntimeError where the start itself cannot be measured."""
        begun = time.monotonic()
        try:
            self._measure_start()
            while (trial := self.propose()) is not None:
                self.measure(trial)
                self.judge(trial)
                self.each()
            self.finish()
        except KeyboardInterrupt:
            self.found.interrupted = True
            raise
        finally:
            self.found.seconds = time.monotonic() - begun
            self.found.done = True
        return self.found

    def _measure_start(self) -> None:
        start = Trial(dict(self.found.start), "the starting point", kept=True)
        self.measure(start)
        if not start.rates:
            raise RuntimeError(f"The starting point cannot be measured: {start.error}")
        self.each()

    def measure(self, trial: Trial, rate: float | None = None) -> None:
        """Run a trial once (more); `rate` are the samples/s to expect, where that is known."""
        if trial not in self.found.tried:
            self.found.tried.append(trial)
        self.found.latest = trial
        if trial.rate:
            rate = trial.rate
        elif trial.expected:
            rate = trial.expected.value
        elif rate is None:
            rate = self.found.tried[0].rate
        measured = self.bench.measure(trial.knobs, rate)
        trial.error = None if measured.rate else measured.error or "no number"
        if measured.rate and measured.run is not None:
            trial.rates.append(measured.rate)
            trial.runs.append(measured.run)


class LoaderSearch(Search[Tuning]):
    """A search for the cheapest loader that is as fast as the fastest.

    A gain so small that it may be noise is measured again.
    """

    def __init__(
        self,
        found: Tuning,
        bench: Runner,
        proposals: LoaderProposals,
        variants: Sequence[Knobs] = (),
    ):
        """Set up a search; `variants` are changes that are tried on the winner."""
        super().__init__(found, bench)
        self.proposals = proposals
        self.variants = list(variants)
        self.neighbours_left = NEIGHBOURS

    def propose(self) -> Trial | None:
        """Return what is predicted to gain, then the best's neighbours, then its variants."""
        proposals = self.proposals
        most = MOST_TRIED + MORE * proposals.contradicted
        is_predicting = self.neighbours_left == NEIGHBOURS
        if is_predicting and len(self.found.tried) < most:
            trial = proposals.faster_or_cheaper() or proposals.unseen()
            if trial is not None:
                return trial
        while self.neighbours_left:
            self.neighbours_left -= 1
            trial = proposals.neighbour()
            if trial is not None:
                return trial
        while self.variants:
            change = self.variants.pop(0)
            setting = proposals.best.setting.but(**change)
            if not proposals.is_tried(setting):
                what = ", ".join(f"{name}={value}" for name, value in change.items())
                return proposals.trial_of(setting, f"the best so far with {what}")
        return None

    def judge(self, trial: Trial) -> None:
        """Compare a trial with the baseline."""
        if trial.rate:
            trial.gain = trial.rate / self.found.tried[0].speed

    def finish(self) -> None:
        """Choose the best, or the baseline where it is not slower after all."""
        self.found.chosen = self._not_slower(self.proposals.best)
        for trial in self.found.tried[1:]:
            self.judge(trial)
        refused = self.proposals.refused
        if refused:
            cheapest = min(refused, key=lambda setting: setting.cost)
            self.found.notes.append(
                f"Not tried: {len(refused)} settings; {cheapest}: {refused[cheapest]}."
            )
        if len(self.found.tried) == 1:
            self.found.notes.append(
                "No other setting was predicted to be faster or as fast and cheaper."
            )

    def _not_slower(self, best: Trial) -> Trial:
        """Return `best`, or the baseline where it is not slower after all."""
        baseline = self.found.tried[0]
        if best is baseline:
            return best
        is_cheaper = best.setting.cost < baseline.setting.cost
        least_gain = 1.0 if is_cheaper and self.proposals.agreed else 1 + SURE
        gain = best.speed / baseline.speed
        if gain >= least_gain:
            return best
        uneven = max(trial.runs[-1].spread or 0.0 for trial in (best, baseline))
        if best.setting.cost > baseline.setting.cost and gain - 1 <= min(CLOSE, uneven):
            return baseline  # more runs would only tell how small it is
        self._measure_again(best, baseline)
        return best if not best.error and best.speed >= baseline.speed else baseline

    def _measure_again(self, best: Trial, baseline: Trial) -> None:
        """Measure both more often, the closer they are."""
        while not best.error:
            is_close = abs(best.speed / baseline.speed - 1) <= CLOSE
            fewer = min(baseline, best, key=lambda trial: len(trial.rates))
            if len(fewer.rates) >= (RUNS_EACH if is_close else 2):
                return
            self.measure(fewer)
            self.each()
