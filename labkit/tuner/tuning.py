"""What came out of a search: every setting that was tried, why, and the one to take."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from labkit.tuner.setting import Setting

TIE = 0.015  # throughputs closer than this are the same: repeats of one run differ by more


@dataclass
class Trial:
    """One setting: why it was tried, what was expected of it, and what was measured.

    Attributes:
        why: What led to it, in words.
        expected: Predicted throughput, samples/s: (value, low, high); None where not predicted.
        rates: Measured throughputs, samples/s, one for each run.
        runs: The runs themselves.
        error: Why its last run gave no number; None where it did.
    """

    setting: Setting
    why: str
    expected: tuple[float, float, float] | None = None
    rates: list[float] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list, repr=False)
    error: str | None = None

    @property
    def rate(self) -> float | None:
        """Median measured throughput, samples/s."""
        return median(self.rates) if self.rates else None

    def to_dict(self) -> dict[str, Any]:
        """The trial as JSON types."""
        return {
            "setting": self.setting.to_dict(),
            "why": self.why,
            "predicted": self.expected and self.expected[0],
            "predicted_range": self.expected and list(self.expected[1:]),
            "throughput": self.rate,
            "throughputs": self.rates,
            "runs": [run.id for run in self.runs],
            "error": self.error,
        }


class Tuning:
    """The result of a search, also of one that goes on or was interrupted.

    Attributes:
        tried: Every trial, in the order of its first run.
        reasons: {knob: why it has the value it has}, of the knobs that were not searched.
        notes: What limits the result, in words.
        interrupted: Whether it was stopped before its end.
        seconds: Time it took, s.
    """

    def __init__(self, name: str, baseline: Setting, line: str = ""):
        self.name, self.line = name, line
        self.start = baseline
        self.tried: list[Trial] = []
        self.latest: Trial | None = None  # the one that was run last, or is running
        self.reasons: dict[str, str] = {}
        self.notes: list[str] = []
        self.interrupted, self.done, self.seconds = False, False, 0.0
        self.extra: dict[str, Any] = {}  # settings found without a search
        self._chosen: Trial | None = None

    @property
    def baseline(self) -> Trial | None:
        """The trial of the setting it started from."""
        return self.tried[0] if self.tried else None

    @property
    def winner(self) -> Trial | None:
        """The trial of the setting to take; while it goes on, the best so far."""
        return self._chosen or choose(self.tried)

    @property
    def best(self) -> dict[str, Any]:
        """The setting to take, as arguments of a DataLoader or changes to a Pipeline.

        The setting it started from where nothing else was measured.
        """
        setting = self.winner.setting if self.winner else self.start
        more = self.extra if setting.num_workers else {}
        return setting.but(**more).to_dict()

    @property
    def speedup(self) -> float | None:
        """Throughput of the best setting over that of the baseline, both measured here."""
        if not self.winner or not self.baseline.rate:
            return None
        return self.winner.rate / self.baseline.rate

    def settle(self, trial: Trial | None) -> None:
        """End the search with this trial's setting."""
        self._chosen = trial

    def trial(self, setting: Setting) -> Trial | None:
        """Return the trial of `setting`; None where it was not tried."""
        return next((trial for trial in self.tried if trial.setting == setting), None)

    @property
    def snippet(self) -> str:
        """The result as code to paste."""
        best = {k: v for k, v in self.best.items() if v is not None and v is not False}
        best.setdefault("num_workers", 0)
        order = [name for name in self.best if name in best]
        listed = ", ".join(f"{name}={best[name]!r}" for name in order)
        return f"DataLoader(dataset, {listed})"

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "source": self.name,
            "machine": self.line,
            "best": self.best,
            "baseline": self.start.to_dict(),
            "baseline_throughput": self.baseline and self.baseline.rate,
            "best_throughput": self.winner and self.winner.rate,
            "speedup": self.speedup,
            "trials": [trial.to_dict() for trial in self.tried],
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "reasons": self.reasons,
            "notes": self.notes,
            "snippet": self.snippet,
        }

    def verdict(self, trial: Trial) -> str:
        """Say in a few words what became of a trial."""
        if trial.error:
            return trial.error if not trial.rates else f"then failed: {trial.error}"
        words = ["baseline"] if trial is self.baseline else []
        best = self.winner
        if trial is best:
            words.append("best" if self.done else "best so far")
        elif best and trial.rate and trial.rate >= (1 - TIE) * best.rate:
            words.append(
                "a tie, but costs more" if trial.setting.cost > best.setting.cost else "a tie"
            )
        return ", ".join(words)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: setting, predicted and measured samples/s, what came of it, and why."""
        rows = [("setting", "predicted", "measured", "", "why it was tried")]
        for trial in self.tried:
            expected = trial.expected
            predicted = f"{expected[1]:,.0f} to {expected[2]:,.0f}" if expected else "-"
            measured = f"{trial.rate:,.0f}" if trial.rate else "-"
            if len(trial.rates) > 1:
                measured += f" ({len(trial.rates)} runs)"
            what = str(trial.setting)
            if trial.setting.batch_size != self.start.batch_size:
                what += f", batch {trial.setting.batch_size}"
            rows.append((what, predicted, measured, self.verdict(trial), trial.why))
        return rows

    @property
    def headline(self) -> str:
        """The result in one line."""
        if not self.winner:
            return f"Tuning({self.name}): nothing measured yet"
        state = " (interrupted: the best so far)" if self.interrupted else ""
        rate = f"{self.winner.rate:,.0f} samples/s, {self.speedup:.2f}x the baseline"
        took = f", found in {self.seconds:.0f} s" if self.done else ""
        return f"Tuning({self.name}){state}: {self.winner.setting}: {rate}{took}"

    def __repr__(self) -> str:
        rows = [tuple(cell[:72] for cell in row) for row in self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        why = [f"{name}: {reason}" for name, reason in self.reasons.items()]
        lines = [self.headline, *table, *why, *self.notes, self.snippet]
        return "\n".join([*lines, *([f"measured on {self.line}"] if self.line else [])])


def choose(trials: list[Trial]) -> Trial | None:
    """Return the cheapest of the trials that tie with the fastest; None without a measured one."""
    measured = [trial for trial in trials if trial.rate and not trial.error]
    if not measured:
        return None
    top = max(trial.rate for trial in measured)
    tied = [trial for trial in measured if trial.rate >= (1 - TIE) * top]
    return min(tied, key=lambda trial: trial.setting.cost)
