"""The autopilot: fix what is on top, measure, ask again, until nothing is worth another run.

It only decides: prediction chooses what to try, and a run decides what is kept. What runs, predicts
and refuses is given to it, so that a test can give it others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from labkit.diagnosis.losses import TOLERANCE, agree
from labkit.results.hardware import Machine
from labkit.spec import compiler
from labkit.tuning.search import Expected, Search
from labkit.tuning.tuning import Setting, Trial, Tuning

MOST_RUNS = 12
LOOKS = 2  # at a setting whose run gave no verdict
WORTH = 0.03  # an expected or measured gain below this is none
SURE = 0.10  # a gain above this, and above the runs' unevenness, needs no second measurement
TRAINING = ("batch_size", "precision")  # knobs that change what is trained
LOADER = ("num_workers", "prefetch_factor")  # knobs that the tuner's search chooses
ROUNDS_OFF = ("precision", "compile", "channels_last")  # change the arithmetic, and so the losses
# Change when a batch is there, and neither the samples in it (every run draws the same ones) nor
# what is computed of them: random augmentation may part the losses, and nothing else can
FEEDS = {"num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "non_blocking",
         "prefetch_to_device"}  # fmt: skip
UNCHANGED = 2.0  # times the difference of two unchanged runs' losses, that a change may make
EXACT = 0.02  # relative difference of mean losses where nothing but the order of additions differs


@dataclass
class Rung:
    """One step of the climb: what was found, changed, expected and measured."""

    finding: str  # the bottleneck and its cause, in words
    changes: dict[str, Any]
    # Times the throughput before, as predicted (value, low, high); None where nothing predicts it
    expected: Expected | None = None
    hope: float = 1.0  # times the throughput before, for choosing what to try first
    price: int = 1
    trial: Trial | None = field(default=None, repr=False)  # of the loader's search
    runs: list[Any] = field(default_factory=list, repr=False)
    rates: list[float] = field(default_factory=list)  # samples/s, one for each run
    gain: float | None = None  # measured, times the throughput before
    losses: float | None = None  # relative difference of the mean loss to the start's
    said: str = ""  # what became of it
    kept: bool = False

    rate = property(lambda rung: median(rung.rates) if rung.rates else None, doc="samples/s.")
    what = property(lambda rung: ", ".join(f"{k}={v!r}" for k, v in rung.changes.items()) or
                    "start", doc="The change in words.")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the rung as JSON types."""
        names = ("finding", "changes", "gain", "losses", "said", "kept")
        more = {"throughput": self.rate, "throughputs": self.rates, "expected": self.expected}
        return {name: getattr(self, name) for name in names} | more


@dataclass
class Climb:
    """What the autopilot did: every rung, and why it ended."""

    start: dict[str, Any]  # knobs
    rungs: list[Rung] = field(default_factory=list)  # in the order tried, the start first
    knobs: dict[str, Any] = field(default_factory=dict)  # of the best
    verdict: Any = None  # the last Diagnosis
    left_out: dict[str, str] = field(default_factory=dict)  # {change: why it was not tried}
    stopped: str = ""  # why it ended
    interrupted: bool = False
    seconds: float = 0.0

    best = property(lambda climb: climb.kept[-1], doc="The last rung that was kept.")
    kept = property(lambda climb: [r for r in climb.rungs if r.kept], doc="From the start on.")

    @property
    def changes(self) -> dict[str, Any]:
        """The knobs of the best that are not the start's."""
        return {k: v for k, v in self.knobs.items() if v != self.start.get(k)}

    @property
    def speedup(self) -> float | None:
        """Throughput of the best over the start's best measurement."""
        if not self.kept or not self.best.rate:
            return None
        return self.best.rate / max(self.rungs[0].rates) if self.changes else 1.0


class Improver:
    """Climbs from `start`, a dict of knobs; `climb` is filled as it goes."""

    def __init__(
        self,
        start: dict[str, Any],
        bench: Any,
        forecast: Callable[[Any, dict, dict], Expected | None],
        search: Callable[[Tuning], Search],
        *,
        lacks: Callable[[dict, Any, dict], str | None],
        may_change: Any = (),
        seconds: float | None = None,
        check_start: bool = False,
    ):
        """Set up a climb; nothing runs yet.

        `bench` has measure(knobs, samples/s expected) -> (samples/s, error, run) and counts its
        runs in `count`; `forecast(run, knobs, changes)` predicts samples/s as (value, low, high);
        `search` makes the loader's search from a Tuning; `check_start` measures the start again in
        the end, when caches are warm; `lacks(changes, run, knobs)` says why one cannot act here.
        """
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds={seconds!r}: give a time budget above 0, or None.")
        if unknown := set(may_change) - set(TRAINING):
            raise ValueError(f"may_change={sorted(unknown)}: allow any of {', '.join(TRAINING)}.")
        self.bench, self.forecast, self.make_search, self.lacks = bench, forecast, search, lacks
        self.may_change, self.seconds, self.check_start = set(may_change), seconds, check_start
        self.climb, self.search, self.longest = Climb(dict(start), knobs=dict(start)), None, 0.0
        self.tried: list[dict[str, Any]] = []  # all the knobs of what was run
        self.banned: list[dict[str, Any]] = []  # changes that failed, or broke the losses
        self.each: Callable[[], None] = lambda: None  # called when a rung has been measured

    def run(self) -> Climb:
        """Climb to the end; RuntimeError where the start cannot be measured, and why."""
        climb, self.begun = self.climb, time.monotonic()
        first = Rung("", {}, said="the starting point", kept=True)
        climb.rungs.append(first)
        try:
            if (error := self._measure(first, climb.start)) or not first.rate:
                raise RuntimeError(f"The starting point cannot be measured: {error}")
            self.each()
            while not climb.stopped:
                climb.stopped = self._step()
            if self.check_start and climb.changes and self._room():
                self._check_start(first)
        except KeyboardInterrupt:
            if not first.rates:
                raise
            climb.interrupted, climb.stopped = True, "interrupted: this is the best so far"
            climb.rungs = [rung for rung in climb.rungs if rung.said]
        finally:
            climb.seconds = time.monotonic() - self.begun
        return climb

    def _room(self) -> bool:
        late = self.seconds and time.monotonic() - self.begun + self.longest > self.seconds
        return self.bench.count < MOST_RUNS and not late

    def _measure(self, rung: Rung, knobs: dict[str, Any], rate: float | None = None) -> str | None:
        """Run `knobs` once (more); return why there is no number."""
        begun, made = time.monotonic(), self.bench.count
        rate, error, run = self.bench.measure(knobs, rung.rate or rate)
        took = (time.monotonic() - begun) / max(1, self.bench.count - made)  # a short one is rerun
        self.longest = max(self.longest, took)
        self.tried.append(knobs)
        if rate:
            rung.rates.append(rate)
            rung.runs.append(run)
        return None if rate else error or "no number"

    def _step(self) -> str:
        """Try the most promising change; return why the climb ends, or "" where it goes on."""
        climb = self.climb
        climb.verdict = verdict = climb.best.runs[-1].diagnose()
        if verdict.bottleneck == "compute":
            return "the device is the limit (compute)"
        if self.bench.count >= MOST_RUNS:
            return f"{MOST_RUNS} runs are made"
        if not self._room():
            return f"the {self.seconds:g} s are used up"
        hopes = [rung for rung in self._hopes(verdict) if rung.hope >= 1 + WORTH]
        if not hopes and verdict.bottleneck == "unsure" and len(climb.best.runs) < LOOKS:
            self._measure(climb.best, climb.knobs)
            return ""  # another run may tell
        if not hopes:
            return f"on top is {verdict.headline}, and no setting is expected to gain {WORTH:.0%}"
        self._try(max(hopes, key=lambda rung: (rung.hope - 1) / rung.price))
        return ""

    def _hopes(self, verdict: Any) -> Iterator[Rung]:
        """Yield what may be tried against what was found, with what is expected of it."""
        climb, searched = self.climb, False
        run = climb.best.runs[-1]
        for finding, remedy in ((f, remedy) for f in verdict.findings for remedy in f.remedies):
            name, changes = f"{finding.name}: {finding.cause}", dict(remedy.changes)
            hope = 1 / (1 - min(finding.lost_share, 0.98) / 2)  # half of the loss is gone
            if not changes:  # words alone: nothing that a program can try
                continue
            if set(changes) & set(LOADER):
                if not searched and (rung := self._loader(name, remedy, hope)):
                    searched = True
                    yield rung
            elif climb.knobs | changes in self.tried or changes in self.banned:
                continue
            elif why := self._refused(changes, run):
                climb.left_out[Rung("", changes).what] = why
            else:
                predicted = self.forecast(run, climb.knobs, changes)
                yield self._rung(name, changes, predicted, remedy, hope)

    def _refused(self, changes: dict[str, Any], run: Any) -> str | None:
        """Return why a change is not to be tried here."""
        if changed := set(changes) & set(TRAINING) - self.may_change:
            return f"it changes what is trained; may_change={changed} allows it"
        if "precision" in changes and not any(map(math.isfinite, run.loss)):
            return "the step returns no loss, so nothing could tell whether it holds"
        return self.lacks(changes, run, self.climb.knobs)

    def _loader(self, name: str, remedy: Any, hope: float) -> Rung | None:
        """Return what the tuner's search would measure next; after that, what was advised."""
        best, here = self.climb.best, Setting.of(self.climb.knobs)
        if self.search is None:
            tuning = Tuning("", here)
            tuning.tried.append(Trial(here, "", rates=list(best.rates), runs=list(best.runs)))
            self.search = self.make_search(tuning)
        trial = self.search.next(save=False)
        then = trial.setting if trial else Setting.of(self.climb.knobs | remedy.changes)
        changes = {k: v for k, v in then.to_dict().items() if v != getattr(here, k)}
        if trial:
            return self._rung(name, changes, trial.expected, remedy, hope, trial)
        search = self.search
        known = self.climb.knobs | changes in self.tried
        if known or then not in search.settings or not search.may_run(then):
            return None
        predicted = search.expected(then)
        rung = self._rung(name, changes, predicted, remedy, hope)
        if rung.expected and rung.expected[2] < 1 + WORTH:
            return None
        rung.hope = 1 + WORTH  # comes last
        return rung

    def _rung(
        self,
        name: str,
        changes: dict[str, Any],
        predicted: Expected | None,
        remedy: Any,
        hope: float,
        trial: Any = None,
    ) -> Rung:
        """Return what may be tried; where nothing predicts it, with what is hoped for."""
        if predicted is None:
            return Rung(name, changes, None, hope, remedy.price, trial)
        times = tuple(part / self.climb.best.rate for part in predicted)
        return Rung(name, changes, times, times[0], remedy.price, trial)

    def _try(self, rung: Rung) -> None:
        """Measure a change, again where it is close, and keep it or not."""
        climb, before = self.climb, self.climb.best
        knobs = climb.knobs | rung.changes
        climb.rungs.append(rung)
        error = self._measure(rung, knobs, before.rate * rung.hope)
        if rung.trial:
            self.search.tuning.tried.append(rung.trial)
            rung.trial.rates, rung.trial.runs, rung.trial.error = rung.rates, rung.runs, error
        rung.said = f"failed: {error}" if error else self._judged(rung, before, knobs)
        rung.kept = rung.said == "kept"
        if rung.kept:
            climb.knobs = knobs
            self.search = self.search if rung.trial else None  # another step: another search
        elif rung.said != "no gain":
            self.banned.append(rung.changes)
        self.each()

    def _judged(self, rung: Rung, before: Rung, knobs: dict[str, Any]) -> str:
        """Return "kept", or why it is not."""
        run = rung.runs[-1]
        for name in set(rung.changes) & set(getattr(run, "not_applied", ())):
            return f"cannot act here: {run.not_applied[name]}"
        if "batch_size" not in rung.changes and (why := self._losses_differ(rung, before)):
            return why
        rung.gain = rung.rate / before.rate
        noise = max(SURE, run.spread or 0.0, before.runs[-1].spread or 0.0)
        if rung.gain <= 1 or rung.gain > 1 + noise or not self._room():
            sure = WORTH if rung.gain > 1 + noise else max(WORTH, noise)
            return "kept" if rung.gain > 1 + sure else "no gain"
        self._measure(before, self.climb.knobs)
        self._measure(rung, knobs)
        rung.gain = rung.rate / before.rate
        apart = min(rung.rates) > max(before.rates)
        return "kept" if rung.gain > 1 + WORTH and apart else "no gain"

    def _losses_differ(self, rung: Rung, before: Rung) -> str:
        """Return why a change is undone for its losses, or "" where they hold.

        The losses of a change to the arithmetic may be as far apart as `TOLERANCE` allows, or as
        those of two unchanged runs; one to the loader is not judged, only shown.
        """
        climb = self.climb
        larger = [kept for kept in climb.kept if "batch_size" in kept.changes]  # other batches
        same = (larger or climb.rungs)[-1 if larger else 0].runs[0]
        rough = set(climb.changes | rung.changes) & set(ROUNDS_OFF)
        tolerance = TOLERANCE if rough else EXACT
        holds, rung.losses = agree(same.loss, rung.runs[-1].loss, tolerance)
        if holds or rung.changes.keys() <= FEEDS:
            return ""
        if rung.losses is not None and len(before.runs) < 2 and self._room():
            self._measure(before, climb.knobs)
        if rung.losses is not None and len(before.runs) > 1:
            first, *_, again = before.runs
            _, apart = agree(first.loss, again.loss, EXACT)
            spread = UNCHANGED * abs(apart or 0.0)
            holds, _ = agree(same.loss, rung.runs[-1].loss, max(tolerance, spread))
        far = "are not finite" if rung.losses is None else f"differ by {rung.losses:+.1%}"
        return "" if holds else f"undone: the losses {far}"

    def _check_start(self, first: Rung) -> None:
        """Measure the start again, now that caches are warm: the gain must be no more than that."""
        climb = self.climb
        self._measure(first, climb.start)
        if climb.best.rate < (1 + WORTH) * max(first.rates):
            for rung in climb.kept[1:]:
                rung.kept, rung.said = False, "no gain: the start was as fast, measured again"
            climb.knobs = dict(climb.start)


def lacking(changes: dict[str, Any], machine: Machine, knobs: dict[str, Any]) -> str | None:
    """Return what this device, or the model, lacks for a change; None where nothing is known."""
    cuda = machine.device.startswith("cuda")
    if not cuda and {"pin_memory", "non_blocking", "prefetch_to_device"} & set(changes):
        return "there is no CUDA device to copy to"
    if cuda and changes.get("precision") == "bf16" and float(machine.compute_capability or 9) < 8:
        return f"BF16 needs compute capability 8.0; this card has {machine.compute_capability}"
    if changes.get("compile") and not cuda and (machine.device == "mps" or not compiler()):
        return "torch.compile finds no compiler for this device"
    if changes.get("channels_last") and knobs.get("model", "cnn") != "cnn":
        return "the model has no convolutions"
    return None
