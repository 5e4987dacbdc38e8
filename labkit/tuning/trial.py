"""A trial: knobs that were run, what was expected of them, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.prediction import DRAWS, predict_from
from labkit.knobs import Settings, as_typed
from labkit.results.run import Run
from labkit.spec import Pipeline
from labkit.tuning.settings import LoaderSetting

TIE = 0.015  # throughputs closer than this are the same: repeats of one run differ by more
OWN_DATA = Pipeline(io_ms=0)  # stands for the user's own data, of which no wait is known


@dataclass(frozen=True)
class Judgement:
    """What becomes of a trial that has run."""

    said: str  # in a few words
    kept: bool = False


START = Judgement("", kept=True)


class Outcome(NamedTuple):
    """The outcome of one run."""

    rate: float | None  # samples/s
    error: str | None  # why there is no number
    run: Run | None


@dataclass(eq=False)
class Trial:
    """Settings that were tried, and what became of them."""

    knobs: Settings
    why: str = ""  # the finding that it acts against, or what its prediction promised
    changes: Settings = field(default_factory=dict)  # the knobs that differ from those before it
    expected: Estimate | None = None  # samples/s; None: nothing predicts it
    promise: float = 0.0  # the expected gain over the price of the change
    rates: list[float] = field(default_factory=list)  # samples/s, one for each run
    runs: list[Run] = field(default_factory=list, repr=False)
    error: str | None = None  # why the last run gave no number
    gain: float | None = None  # measured: throughput over that before the change
    loss_change: float | None = None  # relative difference of the mean loss from the start's
    judgement: Judgement | None = None  # what became of it
    is_bound: bool = False  # whether it only says what could be gained: nobody can set it
    remark: str = ""  # on how it was measured

    @classmethod
    def changing(
        cls, before: Settings, knobs: Settings, why: str, expected: Estimate | None = None
    ) -> Trial:
        """Return the trial of the knobs `before` with those of `knobs` in their place."""
        changes = {name: value for name, value in knobs.items() if value != before.get(name)}
        return cls(before | knobs, why, changes, expected)

    @property
    def said(self) -> str:
        """What became of it, in a few words; "" where nothing judged it."""
        return self.judgement.said if self.judgement else ""

    @property
    def kept(self) -> bool:
        """Whether the knobs after it are changes to these."""
        return self.judgement is not None and self.judgement.kept

    @property
    def setting(self) -> LoaderSetting:
        """The loader's arguments among the knobs."""
        return LoaderSetting.of(self.knobs)

    @property
    def rate(self) -> float | None:
        """Median throughput, samples/s; None where no run gave a number."""
        return median(self.rates) if self.rates else None

    @property
    def speed(self) -> float:
        """The throughput, samples/s; 0 where no run gave a number."""
        return self.rate or 0.0

    @property
    def what(self) -> str:
        """The change in words."""
        if self.is_bound:
            return "ready batches"
        named = {name: value for name, value in self.changes.items() if value is not None}
        return as_typed(named) or "start"

    def to_dict(self) -> dict[str, object]:
        """Return the trial as JSON types."""
        names = ("why", "changes", "error", "gain", "said", "kept")
        return {
            **{name: getattr(self, name) for name in names},
            "setting": self.setting.to_dict(),
            "throughput": self.rate,
            "throughputs": self.rates,
            "predicted": self.expected.value if self.expected else None,
            "predicted_range": self.expected[1:] if self.expected else None,
            "losses": self.loss_change,
        }


def forecast(run: Run, here: LoaderSetting, changes: Settings) -> Estimate | None:
    """Return the samples/s that changes to a run with the loader `here` give; None: not known."""
    own_data = OWN_DATA.but(**here.to_dict()) if run.watched else None
    return predict_from(run, changes, DRAWS, own_data).estimate


def is_tie(trial: Trial, fastest: Trial, within: float = TIE) -> bool:
    """Return whether a trial is as fast as the fastest one."""
    return trial.speed >= (1 - within) * fastest.speed


def cheapest_of_fastest(trials: Iterable[Trial], within: float = TIE) -> Trial | None:
    """Return the cheapest of the trials that tie with the fastest; None where none has a number."""
    measured = [each for each in trials if each.rates and not each.error and not each.is_bound]
    fastest = max(measured, key=lambda trial: trial.speed, default=None)
    if fastest is None:
        return None
    tied = [trial for trial in measured if is_tie(trial, fastest, within)]
    return min(tied, key=lambda trial: (*trial.setting.cost, len(trial.changes)))
