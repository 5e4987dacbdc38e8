"""A search over knobs: propose a trial, run it, judge it, until nothing is worth another run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from labkit.results.run import Run
from labkit.tuning.search_result import SearchResult
from labkit.tuning.trial import START, Trial
from labkit.tuning.trial_bench import Bench

SURE = 0.10  # a gain above this needs no second measurement

AnyResult = TypeVar("AnyResult", bound=SearchResult)


class Search(Generic[AnyResult]):
    """A search that fills its result as it goes."""

    def __init__(self, found: AnyResult, bench: Bench):
        """Set up a search; nothing runs yet."""
        self.found = found
        self.bench = bench
        self.each: Callable[[], object] = lambda: None
        self.begun_s = 0.0  # on the monotonic clock

    def tell(self, judged: Callable[[], object], running: Callable[[Run], object]) -> None:
        """Call `judged()` whenever a trial has been judged, and `running(run)` while one runs."""
        self.each = judged
        self.bench.each = running

    def propose(self) -> Trial | None:
        """Return the next trial; None where the search is over."""
        raise NotImplementedError

    def judge(self, trial: Trial) -> None:
        """Decide what becomes of a trial that has run."""

    def finish(self) -> None:
        """Decide what needs another measurement, and which trial to take."""

    def run(self) -> AnyResult:
        """Search to the end; raises RuntimeError where the start itself cannot be measured."""
        self.begun_s = time.monotonic()
        start = Trial(dict(self.found.start), "the starting point", judgement=START)
        try:
            self.measure(start)
            if not start.rates:
                raise RuntimeError(f"The starting point cannot be measured: {start.error}")
            self.each()
            while (trial := self.propose()) is not None:
                self.measure(trial)
                self.judge(trial)
                self.each()
            self.finish()
        except KeyboardInterrupt:
            self.found.interrupted = True
            raise
        finally:
            self.found.seconds = time.monotonic() - self.begun_s
            self.found.done = True
        return self.found

    def measure(self, trial: Trial) -> None:
        """Run a trial once (more)."""
        if trial not in self.found.tried:
            self.found.tried.append(trial)
        self.found.latest = trial
        rate = trial.rate or (trial.expected.value if trial.expected else None)
        measured = self.bench.measure(trial.knobs, rate or self.found.tried[0].rate)
        trial.error = None if measured.rate else measured.error or "no number"
        if measured.rate:
            trial.rates.append(measured.rate)
        if measured.rate and measured.run is not None:
            trial.runs.append(measured.run)
