"""Loader settings, the trials of a search among them, and its result: the one to take."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from labkit.diagnosis.loader_code import LoopCode
from labkit.diagnosis.recommendation import WORKERS
from labkit.results.result import Result, Table, but
from labkit.results.script import PYTORCH_PREFETCH, Script, loader_line, script
from labkit.spec import Pipeline

PREFETCH = (2, 4, 8)  # batches per worker; with one, workers wait for the loop between batches
TIE = 0.015  # throughputs closer than this are the same: repeats of one run differ by more
CELL = 72  # characters of a cell: errors can be long


@dataclass(frozen=True)
class Setting:
    """The arguments of a DataLoader that are tuned, under their own names."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int = 16

    @classmethod
    def of(cls, knobs: dict[str, Any]) -> Setting:
        """Make one from {knob: value}; with workers, prefetch_factor becomes PyTorch's default."""
        made = cls(**{name: knobs[name] for name in cls.__dataclass_fields__ if name in knobs})
        default = made.num_workers and made.prefetch_factor is None
        return replace(made, prefetch_factor=PYTORCH_PREFETCH) if default else made

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments: `DataLoader(dataset, **setting.to_dict())`."""
        return asdict(self)

    def but(self, **changes: Any) -> Setting:
        """Return a changed copy; without workers, what needs them is dropped."""
        made = replace(self, **changes)
        none = {} if made.num_workers else {"prefetch_factor": None, "persistent_workers": False}
        return replace(made, **none)

    in_flight = property(
        lambda setting: setting.num_workers * (setting.prefetch_factor or 0),
        doc="Batches that may wait in the loader's queues.",
    )
    cost = property(
        lambda s: (s.num_workers, s.in_flight * s.batch_size, int(s.pin_memory)),
        doc="Sorts settings from cheap to dear: by workers, then by samples that wait in RAM.",
    )

    def __str__(self) -> str:
        workers = "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"
        text = f"{workers}, prefetch {self.prefetch_factor}" if self.num_workers else "no workers"
        return text + (", pinned" if self.pin_memory else "")


def space(baseline: Setting, max_workers: int, batch_sizes: Iterable[int]) -> list[Setting]:
    """Return what may be tried: the baseline's other settings with other workers and prefetch."""
    names = ("batch_size", "num_workers", "prefetch_factor")
    counts = [count for count in WORKERS if count <= max_workers]
    every = itertools.product(batch_sizes, counts, PREFETCH)
    made = {baseline.but(**dict(zip(names, values, strict=True))) for values in every}
    return sorted(made, key=lambda setting: (setting.batch_size, setting.cost))


@dataclass
class Trial:
    """One setting: why it was tried, what was expected of it, and what was measured."""

    setting: Setting
    why: str
    expected: tuple[float, float, float] | None = None  # samples/s predicted: value, low, high
    rates: list[float] = field(default_factory=list)  # samples/s measured, one for each run
    runs: list[Any] = field(default_factory=list, repr=False)
    error: str | None = None  # why the last run gave no number

    rate = property(lambda t: median(t.rates) if t.rates else None, doc="Median, samples/s.")

    @property
    def predicted(self) -> str | None:
        """The range that was predicted, samples/s."""
        return self.expected and f"{self.expected[1]:,.0f} to {self.expected[2]:,.0f}"

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as JSON types."""
        value, *reach = self.expected or (None,)
        return {
            "setting": self.setting.to_dict(), "why": self.why, "error": self.error,
            "throughput": self.rate, "throughputs": self.rates,
            "predicted": value, "predicted_range": reach or None,
        }  # fmt: skip


@dataclass(repr=False)
class Tuning(Result):
    """The result of a search, also of one that goes on or was interrupted."""

    name: str  # what was tuned
    start: Setting  # it started from
    line: str = ""  # the machine
    tried: list[Trial] = field(default_factory=list)  # in the order of their first runs
    latest: Trial | None = None  # run last, or running
    reasons: dict[str, str] = field(default_factory=dict)  # {knob that was not searched: why}
    notes: list[str] = field(default_factory=list)  # what limits the result
    extra: dict[str, Any] = field(default_factory=dict)  # settings found without a search
    pipeline: Pipeline | None = None  # that was tuned; None for data of the reader's own
    code: LoopCode = field(default_factory=LoopCode)  # how the reader's script makes the loader
    loader_alone: bool = False  # whether no step was given: the speed-up is not that of training
    chosen: Trial | None = None  # to take, where the search has ended
    interrupted: bool = False
    done: bool = False
    seconds: float = 0.0  # it took

    baseline = property(lambda t: t.tried[0] if t.tried else None, doc="The start's Trial.")

    @property
    def snippet(self) -> str:
        """The loader with the best setting, as code to paste."""
        if self.pipeline:
            return loader_line(self.pipeline.but(**self.best).to_dict())
        return self.code.with_names().loader_line(self.best)

    @property
    def winner(self) -> Trial | None:
        """The trial to take: while it goes on, the cheapest of those that tie with the fastest."""
        measured = [trial for trial in self.tried if trial.rate and not trial.error]
        top = max((trial.rate for trial in measured), default=0)
        tied = [trial for trial in measured if trial.rate >= (1 - TIE) * top]
        return self.chosen or min(tied, key=lambda trial: trial.setting.cost, default=None)

    @property
    def best(self) -> dict[str, Any]:
        """The setting to take (at worst the start's): arguments of a DataLoader or a Pipeline."""
        setting = self.winner.setting if self.winner else self.start
        return setting.but(**self.extra if setting.num_workers else {}).to_dict()

    @property
    def speedup(self) -> float | None:
        """Throughput of the best setting over that of the baseline, both measured here."""
        both = self.winner and self.baseline.rate
        return self.winner.rate / self.baseline.rate if both else None

    def script(self) -> Script:
        """Return the tuned pipeline as a whole script; of a dataset of your own, its DataLoader."""
        if self.pipeline:
            return script(self.pipeline.but(**self.best))
        return Script(f"{self.snippet}\n")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        names = (
            "best",
            "speedup",
            "loader_alone",
            "seconds",
            "interrupted",
            "reasons",
            "notes",
            "snippet",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "source": self.name,
            "machine": self.line,
            "baseline": self.start.to_dict(),
            "baseline_throughput": self.baseline and self.baseline.rate,
            "best_throughput": self.winner and self.winner.rate,
            "trials": [trial.to_dict() for trial in self.tried],
        }

    @property
    def alone(self) -> str:
        """What a speed-up measured without a step is called; "" with one."""
        return " (the loader alone: no step was given)" if self.loader_alone else ""

    def verdict(self, trial: Trial) -> str:
        """Say in a few words what became of a trial."""
        if trial.error:
            return f"then failed: {trial.error}" if trial.rates else trial.error
        words, best = ["baseline"] if trial is self.baseline else [], self.winner
        if trial is best:
            words.append("best" if self.done else "best so far")
        elif best and trial.rate and trial.rate >= (1 - TIE) * best.rate:
            words.append("a tie")
        return ", ".join(words)

    @property
    def headline(self) -> str:
        """The result in one line."""
        state = " (interrupted: the best so far)" if self.interrupted else ""
        if not self.winner:
            return f"Tuning({self.name}): nothing measured{' yet' * (not state)}"
        rate = f"{self.winner.rate:,.0f} samples/s, {self.speedup:.2f}x the baseline{self.alone}"
        took = f", found in {self.seconds:.0f} s" if self.done else ""
        return f"Tuning({self.name}){state}: {self.winner.setting}: {rate}{took}"

    def table(self, now: str = "") -> Table:
        """Return every trial; below, once it is done, reasons and code; `now` is what goes on."""
        rows = []
        for trial in self.tried:
            batch = trial.setting.batch_size
            what = f", batch {batch}" if batch != self.start.batch_size else ""
            runs = f" ({len(trial.rates)} runs)" if len(trial.rates) > 1 else ""
            measured = f"{trial.rate:,.0f}{runs}" if trial.rate else None
            said = self.verdict(trial)[:CELL]
            rows.append((f"{trial.setting}{what}", trial.predicted, measured, said, trial.why))
        foot, copies = [now or "starting"], {}
        if self.done:
            reasons = [f"{name}: {reason}" for name, reason in self.reasons.items()]
            foot = [*reasons, *self.notes, *self.snippet.split("\n")]
            copies = {"PyTorch": self.snippet, "labkit": but(self.best) if self.pipeline else ""}
        foot.append(f"samples/s, measured on {self.line}" if self.line else "")
        bold = [place for place, trial in enumerate(self.tried) if trial is self.winner]
        head = ("setting", "predicted", "measured", "", "why it was tried")
        return Table(rows, head, self.headline, foot, left=range(5), bold=bold, copies=copies)
