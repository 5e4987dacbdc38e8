"""The autopilot: fix what is on top, measure, ask again, until nothing is worth another run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from labkit.diagnosis.findings import gain_without
from labkit.diagnosis.losses import TOLERANCE, agree
from labkit.diagnosis.verdict import Diagnosis
from labkit.knobs import Settings
from labkit.spec import knobs_with
from labkit.tuning.search import Bench, Search
from labkit.tuning.search_result import Ladder
from labkit.tuning.settings import of_loader
from labkit.tuning.trial import Trial

MOST_RUNS = 12
LOOKS = 2  # runs of a setting before "unsure" is taken for the verdict
LEAST_GAIN = 0.03  # a smaller gain, expected or measured, does not count
SURE = 0.10  # a gain above this needs no second measurement
TRAINING = knobs_with("retrains")
EXACT = 0.02  # relative difference of mean losses that another order of additions may make


class Improver(Search):
    """Climbs from the start, one change after the other; the ladder is filled as it goes."""

    def __init__(self, found: Ladder, bench: Bench, may_change: Collection[str] = ()):
        """Set up a climb; nothing runs yet."""
        super().__init__(found, bench)
        if unknown := set(may_change) - set(TRAINING):
            raise ValueError(f"may_change={sorted(unknown)}: allow any of {', '.join(TRAINING)}.")
        self.may_change = set(may_change)
        self.banned: list[Settings] = []  # changes that failed, or broke the losses

    @property
    def has_room(self) -> bool:
        """Whether another run may begin."""
        return sum(len(trial.outcomes) for trial in self.found.tried) < MOST_RUNS

    def go_on(self) -> None:
        """Climb until nothing is worth another run, which `stopped` explains."""
        found = self.found
        found.chosen = self.start
        while not found.stopped:
            found.verdict = self.best.runs[-1].diagnose()
            if found.verdict.bottleneck == "compute":
                found.stopped = "the device is the limit (compute)"
            elif not self.has_room:
                found.stopped = f"{MOST_RUNS} runs are made"
            elif trial := next(self._advised(found.verdict), None):
                self._try(trial)
            elif found.verdict.bottleneck == "unsure" and len(self.best.runs) < LOOKS:
                self.measure(self.best)  # another run may tell
            else:
                gains = f"no setting is expected to gain {LEAST_GAIN:.0%}"
                found.stopped = f"on top is {found.verdict.headline}, and {gains}"
        if found.verdict and found.verdict.bottleneck != "compute":
            found.notes.append(f"left: {found.verdict.advice}")
        found.notes.append(f"it ended: {found.stopped}")

    def _try(self, trial: Trial) -> None:
        """Run a trial; keep it where it gains, measured again where it is close."""
        before = self.best
        self.measure(trial)
        trial.said = self._ruled_out(trial)
        if trial.said:
            self.banned.append(trial.changes)
        else:
            gain = trial.speed / before.speed
            gains = gain > 1 + SURE
            if not gains and gain > 1 and self.has_room:
                self.measure(before)
                self.measure(trial)
                gain = trial.speed / before.speed
                gains = gain > 1 + LEAST_GAIN and min(trial.rates) > max(before.rates)
            trial.said = "kept" if gains else "no gain"
            if gains:
                self.found.chosen = trial
        self.each()

    def _advised(self, verdict: Diagnosis) -> Iterator[Trial]:
        """Yield the trials of what the verdict advises, costliest loss first, if they may gain."""
        for finding in verdict.findings:
            if gain_without(finding.lost_share / 2) < 1 + LEAST_GAIN:  # half of it is won back
                continue
            for remedy in finding.remedies:
                changes = dict(remedy.changes)  # empty for a remedy in words
                if changes and self._may_try(changes):
                    knobs = self.best.knobs | changes
                    knobs |= of_loader(knobs)
                    trial = Trial.changing(self.best.knobs, knobs, finding.title)
                    if all(each.knobs != knobs for each in self.found.tried):
                        yield trial

    def _may_try(self, changes: Settings) -> bool:
        """Return whether a change may be tried here; note where only the user can allow it."""
        refused = set(changes) & set(TRAINING) - self.may_change
        if refused:
            note = f"not tried: what changes the training; may_change={refused} allows it"
            if note not in self.found.notes:
                self.found.notes.append(note)
        return not refused and changes not in self.banned

    def _ruled_out(self, trial: Trial) -> str:
        """Return why a change that has run is out of the question; "" where it is not."""
        if trial.error:
            return f"failed: {trial.error}"
        not_applied = trial.runs[-1].not_applied
        for name in trial.changes:
            if name in not_applied:
                return f"cannot act here: {not_applied[name]}"
        return self._losses_differ(trial)

    def _losses_differ(self, trial: Trial) -> str:
        """Return why a change is undone for its losses, or "" where they are those of the start.

        With another batch size they cannot be, and a change of the loader is not judged by them.
        """
        changed = {name for name in trial.knobs if trial.knobs[name] != self.start.knobs[name]}
        if "batch_size" in changed or trial.changes.keys() <= set(knobs_with("feeds")):
            return ""
        tolerance = TOLERANCE if changed & set(knobs_with("rounds")) else EXACT
        holds, apart = agree(self.start.runs[0].loss, trial.runs[-1].loss, tolerance)
        if holds:
            return ""
        if apart is None:
            return "undone: the losses are not finite"
        return f"undone: the losses differ by {apart:+.1%}"
