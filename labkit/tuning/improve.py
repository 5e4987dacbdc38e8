"""The autopilot: fix what is on top, measure, ask again, until nothing is worth another run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.findings import Finding, Remedy, gain_without
from labkit.diagnosis.losses import TOLERANCE, agree
from labkit.diagnosis.verdict import Diagnosis
from labkit.knobs import Settings
from labkit.results.run import Run
from labkit.spec import knobs_with
from labkit.tuning.search import SURE, Search
from labkit.tuning.search_result import Ladder
from labkit.tuning.settings import LoaderSetting
from labkit.tuning.trial import Judgement, Trial
from labkit.tuning.trial_bench import TrialBench

MOST_RUNS = 12
LOOKS = 2  # runs of a setting before "unsure" is taken for the verdict
LEAST_GAIN = 0.03  # a smaller gain, expected or measured, does not count
TRAINING = knobs_with("retrains")
LOADER = ("num_workers", "prefetch_factor")
KEPT = Judgement("kept", kept=True)
NO_GAIN = Judgement("no gain")  # it may be tried again with others
EXACT = 0.02  # relative difference of mean losses that another order of additions may make


class Improver(Search[Ladder]):
    """Climbs from the start, one change after the other; the ladder is filled as it goes."""

    def __init__(
        self,
        found: Ladder,
        bench: TrialBench,
        forecast: Callable[[Run, LoaderSetting, Settings], Estimate | None],
        too_large: Callable[[LoaderSetting, list[Trial]], str | None],
        *,
        may_change: Collection[str] = (),
        seconds: float | None = None,
    ):
        """Set up a climb; nothing runs yet.

        `forecast(run, its loader, changes)` predicts samples/s; `too_large(loader, trials so far)`
        says why there is no memory for a loader.
        """
        super().__init__(found, bench)
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds={seconds!r}: give a time budget above 0, or None.")
        if unknown := set(may_change) - set(TRAINING):
            raise ValueError(f"may_change={sorted(unknown)}: allow any of {', '.join(TRAINING)}.")
        self.forecast = forecast
        self.too_large = too_large
        self.may_change = set(may_change)
        self.budget_s = seconds
        self.banned: list[Settings] = []  # changes that failed, or broke the losses

    @property
    def best(self) -> Trial:
        """The last trial that was kept."""
        return self.found.kept[-1]

    def run(self) -> Ladder:
        """Climb to the end; RuntimeError where the start cannot be measured, and why."""
        found = self.found
        try:
            super().run()
        except KeyboardInterrupt:
            if not found.tried[0].rates:
                raise
            found.stopped = "interrupted: this is the best so far"
            found.tried = [trial for trial in found.tried if trial.judgement]
        if found.verdict is not None and found.verdict.bottleneck != "compute":
            found.notes.append(f"left: {found.verdict.advice}")
        found.notes.append(f"{self.bench.count} runs, {found.seconds:.0f} s")
        return found

    def propose(self) -> Trial | None:
        """Return the most promising change; None where the climb ends, which `stopped` explains."""
        while True:
            verdict = self.best.runs[-1].diagnose()
            self.found.verdict = verdict
            self.found.stopped = self._end(verdict)
            if self.found.stopped:
                return None
            trials = list(self._promising(verdict))
            if trials:
                return max(trials, key=lambda trial: trial.promise)
            if verdict.bottleneck != "unsure" or len(self.best.runs) >= LOOKS:
                gains = f"no setting is expected to gain {LEAST_GAIN:.0%}"
                self.found.stopped = f"on top is {verdict.headline}, and {gains}"
                return None
            self.measure(self.best)  # another run may tell

    def judge(self, trial: Trial) -> None:
        """Keep a trial that gains, measured again where it is close, or say why not."""
        before = self.best
        why = self._ruled_out(trial)
        if why:
            trial.judgement = Judgement(why)
            self.banned.append(trial.changes)
            return
        trial.gain = trial.speed / before.speed
        spreads = [each.runs[-1].spread or 0.0 for each in (trial, before)]
        gains = trial.gain > 1 + max(SURE, *spreads)
        if not gains and trial.gain > 1 and self._has_room():
            self.measure(before)
            self.measure(trial)
            trial.gain = trial.speed / before.speed
            gains = trial.gain > 1 + LEAST_GAIN and min(trial.rates) > max(before.rates)
        trial.judgement = KEPT if gains else NO_GAIN

    def _has_room(self) -> bool:
        """Whether another run may begin: as long as those before it, it would end in time."""
        runs = self.bench.count
        if self.budget_s is None or not runs:
            return runs < MOST_RUNS
        would_end_s = (time.monotonic() - self.begun_s) * (runs + 1) / runs
        return runs < MOST_RUNS and would_end_s <= self.budget_s

    def _end(self, verdict: Diagnosis) -> str:
        """Return why no other change is tried; "" where one may be."""
        if verdict.bottleneck == "compute":
            return "the device is the limit (compute)"
        if self.bench.count >= MOST_RUNS:
            return f"{MOST_RUNS} runs are made"
        return "" if self._has_room() else f"the {self.budget_s:g} s are used up"

    def _promising(self, verdict: Diagnosis) -> Iterator[Trial]:
        """Yield the trials of what the verdict advises, where it may gain something."""
        for finding in verdict.findings:
            for remedy in finding.remedies:
                trial = self._trial(finding, remedy)
                if trial is not None and trial.promise > 0:
                    yield trial

    def _trial(self, finding: Finding, remedy: Remedy) -> Trial | None:
        """Return the trial of a remedy, None where it is not to be tried.

        Its promise is the predicted gain, of a loader the most that is predicted; where nothing is,
        that half of the lost time is won back.
        """
        before = self.best
        run = before.runs[-1]
        changes = dict(remedy.changes)  # empty for a remedy in words, which no program can try
        knobs = before.knobs | changes
        knobs |= LoaderSetting.of(knobs).to_dict()
        if changes in self.banned or any(trial.knobs == knobs for trial in self.found.tried):
            return None
        trial = Trial.changing(before.knobs, knobs, finding.title)
        why = self._refused(changes)
        if why:
            self.found.reasons[trial.what] = f"not tried: {why}"
            return None
        trial.expected = self.forecast(run, before.setting, changes)
        gain = gain_without(finding.lost_share / 2)
        if trial.expected is not None:
            of_loader = not changes.keys().isdisjoint(LOADER)
            gain = (trial.expected.high if of_loader else trial.expected.value) / before.speed
        if gain >= 1 + LEAST_GAIN:
            trial.promise = (gain - 1) / remedy.price
        return trial

    def _refused(self, changes: Settings) -> str | None:
        """Return why a change is not to be tried here."""
        if changed := set(changes) & set(TRAINING) - self.may_change:
            return f"it changes what is trained; may_change={changed} allows it"
        return self.too_large(LoaderSetting.of(self.best.knobs | changes), self.found.tried)

    def _ruled_out(self, trial: Trial) -> str:
        """Return why a change that has run is out of the question; "" where it is not."""
        if trial.error:
            return f"failed: {trial.error}"
        not_applied = trial.runs[-1].not_applied
        for name in trial.changes:
            if name in not_applied:
                return f"cannot act here: {not_applied[name]}"
        return "" if "batch_size" in trial.changes else self._losses_differ(trial)

    def _losses_differ(self, trial: Trial) -> str:
        """Return why a change is undone for its losses, or "" where they hold.

        They are compared with those of the start, or of the last change of the batch size. A change
        of the loader is not judged by them: they are only shown.
        """
        batches = [each for each in self.found.kept if "batch_size" in each.changes]
        reference = [self.found.kept[0], *batches][-1]
        is_rough = set(self.found.changes | trial.changes) & set(knobs_with("rounds"))
        tolerance = TOLERANCE if is_rough else EXACT
        holds, trial.loss_change = agree(reference.runs[0].loss, trial.runs[-1].loss, tolerance)
        if holds or trial.changes.keys() <= set(knobs_with("feeds")):
            return ""
        if trial.loss_change is None:
            return "undone: the losses are not finite"
        return f"undone: the losses differ by {trial.loss_change:+.1%}"
