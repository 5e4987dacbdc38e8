"""The autopilot: fix what is on top, measure, ask again, until nothing is worth another run."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.diagnosis.findings import Diagnosis
from labkit.spec import knobs_with
from labkit.tuning.search import SURE, WORTH, Search
from labkit.tuning.trial import Trial, of_loader

MOST_TRIALS = 12
TRAINING = set(knobs_with("retrains"))


class Improver(Search):
    """Climbs from the start, one change after the other; each that gains by far is kept."""

    def go_on(self) -> None:
        """Climb until nothing is worth another run, which `stopped` explains."""
        found = self.found
        best = found.chosen = self.start
        while not found.stopped:
            run = best.outcomes[-1].run
            assert run is not None
            found.verdict = run.diagnose()
            trial = next(self.advised(best, found.verdict), None)
            if trial is None:
                found.stopped = f"on top is {found.verdict.headline}, and nothing is left to try"
            elif len(found.tried) > MOST_TRIALS:
                found.stopped = f"{MOST_TRIALS} changes were tried"
            elif (self.measure(trial).rate or 0.0) >= (1 + SURE) * best.rate:
                best = found.chosen = trial

    def advised(self, best: Trial, verdict: Diagnosis) -> Iterator[Trial]:
        """Yield what the verdict advises, costliest loss first; what changes the training never."""
        for finding in verdict.findings:
            for remedy in finding.remedies if finding.lost_share > WORTH else ():
                changes = dict(remedy.changes)  # empty for a remedy in words
                knobs = best.knobs | changes
                trial = Trial.changing(best.knobs, knobs | of_loader(knobs))
                is_new = all(each.knobs != trial.knobs for each in self.found.tried)
                if is_new and not changes.keys() & TRAINING:
                    yield trial
