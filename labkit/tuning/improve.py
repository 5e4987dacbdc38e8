"""The autopilot: fix what is on top, measure, ask again, until nothing is worth another run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from labkit.diagnosis.diagnosis import Diagnosis
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.losses import TOLERANCE, agree
from labkit.diagnosis.remedies import Remedy
from labkit.results.hardware import Machine
from labkit.results.run import Run
from labkit.spec import compiler
from labkit.tuning.result import Ladder
from labkit.tuning.search import SURE, Runner, Search
from labkit.tuning.settings import Knobs, LoaderSetting
from labkit.tuning.trial import Expected, Trial

MOST_RUNS = 12
LOOKS = 2  # at a setting whose run gave no verdict
WORTH = 0.03  # an expected or measured gain below this is none
HIGHEST_LOSS = 0.98  # of the time; more would promise an absurd gain
TRAINING = ("batch_size", "precision")  # knobs that change what is trained
LOADER = ("num_workers", "prefetch_factor")
ROUNDS_OFF = ("precision", "compile", "channels_last")  # change the arithmetic, and so the losses
TO_DEVICE = ("pin_memory", "non_blocking", "prefetch_to_device")
# Change when a batch is there, and neither the samples in it (every run draws the same ones) nor
# what is computed of them: random augmentation may part the losses, and nothing else can
FEEDS = {*LOADER, *TO_DEVICE, "persistent_workers"}
UNCHANGED = 2.0  # times the difference of two unchanged runs' losses, that a change may make
EXACT = 0.02  # relative difference of mean losses where nothing but the order of additions differs
BF16_CAPABILITY = 8.0  # compute capability of the first cards with BF16 units


@dataclass(frozen=True)
class Candidate:
    """A trial that may be made, and what orders it among others."""

    trial: Trial
    hope: float  # times the throughput before, as predicted or hoped for
    price: int


class Improver(Search[Ladder]):
    """Climbs from the start, one change after the other; the ladder is filled as it goes."""

    def __init__(
        self,
        found: Ladder,
        bench: Runner,
        forecast: Callable[[Run, LoaderSetting, Knobs], Expected | None],
        *,
        lacks: Callable[[Knobs, Run, Knobs], str | None],
        may_change: Collection[str] = (),
        seconds: float | None = None,
        check_start: bool = False,
    ):
        """Set up a climb; nothing runs yet.

        `forecast(run, its loader, changes)` predicts samples/s; `lacks(changes, run, knobs)` says
        why changes cannot act here; `check_start` measures the start again in the end, when caches
        are warm.
        """
        super().__init__(found, bench)
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds={seconds!r}: give a time budget above 0, or None.")
        if unknown := set(may_change) - set(TRAINING):
            raise ValueError(f"may_change={sorted(unknown)}: allow any of {', '.join(TRAINING)}.")
        self.forecast = forecast
        self.lacks = lacks
        self.may_change = set(may_change)
        self.budget_s = seconds
        self.check_start = check_start
        self.began_s = 0.0
        self.longest_s = 0.0  # of a run
        self.banned: list[Knobs] = []  # changes that failed, or broke the losses

    @property
    def best(self) -> Trial:
        """The last trial that was kept."""
        return self.found.kept[-1]

    def run(self) -> Ladder:
        """Climb to the end; RuntimeError where the start cannot be measured, and why."""
        self.began_s = time.monotonic()
        found = self.found
        try:
            super().run()
        except KeyboardInterrupt:
            if not found.tried[0].rates:
                raise
            found.stopped = "interrupted: this is the best so far"
            found.tried = [trial for trial in found.tried if trial.said or trial is found.tried[0]]
        found.notes = self._notes()
        return found

    def measure(self, trial: Trial) -> None:
        """Run a trial once (more), and remember how long that takes."""
        begun = time.monotonic()
        runs_before = self.bench.count
        super().measure(trial)
        runs = max(1, self.bench.count - runs_before)  # a short one is run again
        self.longest_s = max(self.longest_s, (time.monotonic() - begun) / runs)

    def propose(self) -> Trial | None:
        """Return the most promising change; None where the climb ends, which `stopped` explains."""
        while True:
            verdict = self.best.runs[-1].diagnose()
            self.found.verdict = verdict
            self.found.stopped = self._end(verdict)
            if self.found.stopped:
                return None
            candidates = [each for each in self._candidates(verdict) if each.hope >= 1 + WORTH]
            if candidates:
                first = max(candidates, key=lambda each: (each.hope - 1) / each.price)
                return first.trial
            if verdict.bottleneck != "unsure" or len(self.best.runs) >= LOOKS:
                self.found.stopped = (
                    f"on top is {verdict.headline}, and no setting is expected to gain {WORTH:.0%}"
                )
                return None
            self.measure(self.best)  # another run may tell

    def judge(self, trial: Trial) -> None:
        """Keep a trial that gains, measured again where it is close, or say why not."""
        trial.said = f"failed: {trial.error}" if trial.error else self._judgement(trial)
        trial.kept = trial.said == "kept"
        if trial.said not in ("kept", "no gain"):
            self.banned.append(trial.changes)

    def finish(self) -> None:
        """Measure the start again, now that caches are warm: the gain must be more than that."""
        found = self.found
        if not (self.check_start and found.changes and self._has_room()):
            return
        start = found.tried[0]
        self.measure(start)
        if self.best.speed < (1 + WORTH) * max(start.rates):
            for trial in found.kept[1:]:
                trial.kept = False
                trial.said = "no gain: the start was as fast, measured again"

    def _has_room(self) -> bool:
        """Whether another run may begin."""
        if self.bench.count >= MOST_RUNS:
            return False
        would_end_s = time.monotonic() - self.began_s + self.longest_s
        return self.budget_s is None or would_end_s <= self.budget_s

    def _end(self, verdict: Diagnosis) -> str:
        """Return why no other change is tried; "" where one may be."""
        if verdict.bottleneck == "compute":
            return "the device is the limit (compute)"
        if self.bench.count >= MOST_RUNS:
            return f"{MOST_RUNS} runs are made"
        return "" if self._has_room() else f"the {self.budget_s:g} s are used up"

    def _notes(self) -> list[str]:
        """Return what is left, and what the climb took."""
        verdict = self.found.verdict
        left = []
        if verdict is not None and verdict.bottleneck != "compute":
            left.append(f"left: {verdict.advice}")
        return [*left, f"{self.bench.count} runs, {self.found.seconds:.0f} s"]

    def _candidates(self, verdict: Diagnosis) -> Iterator[Candidate]:
        """Yield what may be tried against what was found."""
        for finding in verdict.findings:
            for remedy in finding.remedies:
                if remedy.changes:  # else words alone: nothing that a program can try
                    candidate = self._candidate(finding, remedy)
                    if candidate is not None:
                        yield candidate

    def _candidate(self, finding: Finding, remedy: Remedy) -> Candidate | None:
        """Return a remedy as a trial with its hope; None where it is not tried.

        The hope is what is predicted, else that half of the loss is gone. A loader that may be
        faster, though no gain is predicted, is tried last.
        """
        before = self.best
        changes = dict(remedy.changes)
        knobs = before.knobs | changes
        knobs |= LoaderSetting.of(knobs).to_dict()
        if changes in self.banned or any(trial.knobs == knobs for trial in self.found.tried):
            return None
        trial = Trial.changing(before.knobs, knobs, f"{finding.name}: {finding.cause}")
        run = before.runs[-1]
        why = self._refused(changes, run)
        if why:
            self.found.reasons[trial.what] = f"not tried: {why}"
            return None
        trial.expected = self.forecast(run, before.setting, changes)
        hope = 1 / (1 - min(finding.lost_share, HIGHEST_LOSS) / 2)
        if trial.expected is not None:
            hope = trial.expected.value / before.speed
            may_gain = trial.expected.high >= (1 + WORTH) * before.speed
            if may_gain and not changes.keys().isdisjoint(LOADER):
                hope = max(hope, 1 + WORTH)
        return Candidate(trial, hope, remedy.price)

    def _refused(self, changes: Knobs, run: Run) -> str | None:
        """Return why a change is not to be tried here."""
        if changed := set(changes) & set(TRAINING) - self.may_change:
            return f"it changes what is trained; may_change={changed} allows it"
        if "precision" in changes and not any(map(math.isfinite, run.loss)):
            return "the step returns no loss, so nothing could tell whether it holds"
        return self.lacks(changes, run, self.best.knobs)

    def _judgement(self, trial: Trial) -> str:
        """Return "kept", or why it is not."""
        run = trial.runs[-1]
        before = self.best
        for name in trial.changes:
            if name in run.not_applied:
                return f"cannot act here: {run.not_applied[name]}"
        if "batch_size" not in trial.changes:
            broken = self._losses_differ(trial, before)
            if broken:
                return broken
        trial.gain = trial.speed / before.speed
        noise = max(SURE, run.spread or 0.0, before.runs[-1].spread or 0.0)
        if trial.gain > 1 + noise:
            return "kept"
        if trial.gain <= 1 or not self._has_room():
            return "no gain"
        self.measure(before)
        self.measure(trial)
        trial.gain = trial.speed / before.speed
        is_apart = min(trial.rates) > max(before.rates)
        return "kept" if trial.gain > 1 + WORTH and is_apart else "no gain"

    def _losses_differ(self, trial: Trial, before: Trial) -> str:
        """Return why a change is undone for its losses, or "" where they hold.

        The losses of a change to the arithmetic may be as far apart as `TOLERANCE` allows, or as
        those of two unchanged runs; one to the loader is not judged, only shown.
        """
        reference = self._reference().runs[0].loss
        losses = trial.runs[-1].loss
        is_rough = set(self.found.changes | trial.changes) & set(ROUNDS_OFF)
        tolerance = TOLERANCE if is_rough else EXACT
        holds, trial.loss_change = agree(reference, losses, tolerance)
        if holds or trial.changes.keys() <= FEEDS:
            return ""
        if trial.loss_change is None:
            return "undone: the losses are not finite"
        if len(before.runs) < 2 and self._has_room():
            self.measure(before)
        if len(before.runs) > 1:
            _, apart = agree(before.runs[0].loss, before.runs[-1].loss, EXACT)
            spread = UNCHANGED * abs(apart or 0.0)
            holds, _ = agree(reference, losses, max(tolerance, spread))
        return "" if holds else f"undone: the losses differ by {trial.loss_change:+.1%}"

    def _reference(self) -> Trial:
        """Return the trial whose losses are compared with: the last one with other batches."""
        kept = self.found.kept
        other_batches = [trial for trial in kept if "batch_size" in trial.changes]
        return other_batches[-1] if other_batches else kept[0]


def lacking(changes: Knobs, machine: Machine, knobs: Knobs) -> str | None:
    """Return what this device, or the model, lacks for a change; None where nothing is known."""
    is_cuda = machine.device.startswith("cuda")
    if not is_cuda and not changes.keys().isdisjoint(TO_DEVICE):
        return "there is no CUDA device to copy to"
    capability = float(machine.compute_capability or BF16_CAPABILITY)
    if is_cuda and changes.get("precision") == "bf16" and capability < BF16_CAPABILITY:
        return f"BF16 needs compute capability 8.0; this card has {machine.compute_capability}"
    if changes.get("compile") and not (machine.compiles and (is_cuda or compiler())):
        return "torch.compile finds no compiler for this device"
    if changes.get("channels_last") and knobs.get("model", "cnn") != "cnn":
        return "the model has no convolutions"
    return None
