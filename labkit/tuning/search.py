"""A search over knobs: run one trial after the other, until nothing is worth another run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from labkit.api import Run
from labkit.knobs import Settings
from labkit.tuning.search_result import Tuning
from labkit.tuning.trial import Outcome, Trial


class Bench(Protocol):
    """What runs the trials of a search."""

    each: Callable[[Run], object] | None  # called with the run that is going on

    def measure(self, knobs: Settings, rate: float | None, whole: bool = False) -> Outcome:
        """Run knobs, not to the end where `rate` samples/s are far above them, unless `whole`."""
        ...


class Search:
    """A search that fills its result as it goes. It only decides: the bench runs."""

    def __init__(self, found: Tuning, bench: Bench):
        """Set up a search; nothing runs yet. A start that has been measured is in `found`."""
        self.found = found
        self.bench = bench
        self.each: Callable[[], object] = lambda: None  # called when a trial has been judged

    @property
    def start(self) -> Trial:
        """The trial of the settings as they are."""
        return self.found.tried[0]

    @property
    def best(self) -> Trial:
        """The best trial so far."""
        return self.found.winner or self.start

    def go_on(self) -> None:
        """Run trials, once the start has been measured."""
        raise NotImplementedError

    def run(self) -> Tuning:
        """Search to the end; raises RuntimeError where the start itself cannot be measured."""
        begun_s = time.monotonic()
        try:
            if not self.found.tried:
                self.measure(Trial(dict(self.found.start), "the starting point"))
            if not self.start.rates:
                raise RuntimeError(f"The starting point cannot be measured: {self.start.error}")
            self.each()
            self.go_on()
        except KeyboardInterrupt:
            self.found.interrupted = True
            raise
        finally:
            self.found.seconds = time.monotonic() - begun_s
            self.found.done = True
        return self.found

    def measure(self, trial: Trial, whole: bool = False) -> None:
        """Run a trial once (more)."""
        rate = self.best.rate if self.found.tried else None
        if trial not in self.found.tried:
            self.found.tried.append(trial)
        self.found.latest = trial
        trial.outcomes.append(self.bench.measure(trial.knobs, rate, whole))
