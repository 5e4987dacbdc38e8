"""One run against the run before it: what was changed, and what it brought."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.step_classes import CLASSES
from labkit.results.text import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.results.run import Run

COMPARED = (
    "throughput",
    "utilization",
    "step_ms",
    "wait_ms",
    "copy_ms",
    "compute_ms",
    "other_ms",
)
OF_SOME_RUNS = ("mfu", "mbu", "padding")  # statistics that only some runs have
TINY = 0.01  # share of a step: where both sides are below it, their ratio says nothing
LEAST_NOISE = 0.02  # relative difference of throughput that two runs may always have
# Neighbouring steps are alike, so noise is measured between the means of BLOCKS stretches of a run,
# not between steps. A part that differs by less than LEAST of the step is not mentioned
BLOCKS = 20
LEAST = 0.02
LEAST_STEPS = 5  # that both runs need for a comparison of their parts


@dataclass(frozen=True)
class Part:
    """A part of the average step before and after, ms."""

    name: str  # "step", or a class of its time
    before_ms: float
    after_ms: float
    low_ms: float  # 95 % interval of the difference
    high_ms: float
    changed: bool  # beyond the noise

    @property
    def slower(self) -> bool:
        """Whether it takes longer, beyond the noise."""
        return self.changed and self.after_ms > self.before_ms

    def __str__(self) -> str:
        what = CLASSES.get(self.name, "a step")
        change_ms = self.after_ms - self.before_ms
        return f"{what} {change_ms:+.2f} ms (95%: {self.low_ms:+.2f} to {self.high_ms:+.2f})"


class Comparison(Result):
    """The Run `after` against the Run `before`: what was changed, and what it brought."""

    def __init__(self, before: Run, after: Run):
        self.before = before
        self.after = after

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """{knob: (before, after)} of the knobs that ran with other values and were asked for."""
        old = self.before.pipeline.to_dict()
        new = self.after.pipeline.to_dict()
        asked_old = self.before.asked.to_dict()
        asked_new = self.after.asked.to_dict()
        differ = [name for name in old if old[name] != new[name]]
        left_open = {name for name in differ if asked_old[name] is asked_new[name] is None}
        return {name: (old[name], new[name]) for name in differ if name not in left_open}

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        return _ratio(self.before.throughput, self.after.throughput)

    @property
    def significant(self) -> bool:
        """True where the difference is larger than the two runs' own unevenness."""
        noise = max(self.before.spread or 0.0, self.after.spread or 0.0, LEAST_NOISE)
        return self.speedup is not None and abs(self.speedup - 1) > noise

    @property
    def verdict(self) -> str:
        """One sentence on what the change brought."""
        if self.speedup is None:
            return "One of the runs has no numbers to compare."
        where = {run.machine.name for run in (self.before, self.after) if run.recorded}
        mark = f" RECORDED numbers are from {', '.join(sorted(where))}." if where else ""
        if not self.significant:
            return f"No difference beyond the noise ({self.speedup:.2f}x).{mark}"
        word = "faster" if self.speedup > 1 else "slower"
        return f"{max(self.speedup, 1 / self.speedup):.2f}x {word}.{mark}"

    @cached_property
    def parts(self) -> list[Part]:
        """The step and the classes of its time, before and after; none where a run is too short.

        Steps of other batch sizes are scaled to the samples of `before`.
        """
        if min(len(run.steps_ms) for run in (self.before, self.after)) < LEAST_STEPS:
            return []
        old = _blocks_of(self.before)
        new = _blocks_of(self.after) * (_batch_size(self.before) / _batch_size(self.after))
        old_ms = old.mean(axis=0)
        new_ms = new.mean(axis=0)
        more_ms = new_ms - old_ms
        variance = old.var(axis=0, ddof=1) / len(old) + new.var(axis=0, ddof=1) / len(new)
        margin_ms = 1.96 * np.sqrt(variance)
        changed = abs(more_ms) > np.maximum(margin_ms, LEAST * old_ms[0])
        numbers = np.column_stack([old_ms, new_ms, more_ms - margin_ms, more_ms + margin_ms])
        rows = zip(("step", *CLASSES), *numbers.T.tolist(), changed.tolist(), strict=True)
        return [Part(*row) for row in rows]

    def slower_by(self, limit: float) -> bool:
        """Return whether a step takes over `limit` (0.05 is 5 %) longer, beyond the noise."""
        if not self.parts:
            return False
        step = self.parts[0]
        return step.slower and step.after_ms > (1 + limit) * step.before_ms

    def plot(self) -> Figure:
        """Draw both runs on one time scale, the earlier one above, as a matplotlib Figure."""
        return self.after.plot(self.before)

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as JSON types."""
        return {
            "speedup": self.speedup,
            "significant": self.significant,
            "verdict": self.verdict,
            "changed": self.changed,
            "parts": [asdict(part) for part in self.parts],
            "slower": [part.name for part in self.parts if part.slower],
        }

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [(name, repr(old), repr(new), "") for name, (old, new) in self.changed.items()]
        rows += map(self._row, known((*COMPARED, *OF_SOME_RUNS), (self.before, self.after)))
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict, *self._remarks()))

    def _row(self, name: str) -> tuple[str, str, str, str]:
        """Return a statistic before and after, as printed, and its ratio."""
        old = getattr(self.before, name)
        new = getattr(self.after, name)
        ratio = _ratio(old, new)
        if ratio and name.endswith("_ms"):
            largest = max(old / self.before.step_ms, new / self.after.step_ms)
            ratio = ratio if largest >= TINY else None
        text = f"{ratio:.2f}x" if ratio else ""
        return name, printed(self.before, name), printed(self.after, name), text

    def _remarks(self) -> list[str]:
        """Say which parts changed beyond the noise, and whether a step means a micro-batch."""
        remarks = []
        for word, is_slower in (("slower", True), ("faster", False)):
            parts = [str(each) for each in self.parts if each.changed and each.slower == is_slower]
            if parts:
                remarks.append(f"{word} beyond the noise: {', '.join(parts)}")
        old = self.before.pipeline.accumulation_steps
        new = self.after.pipeline.accumulation_steps
        if old != new:
            remarks.append(f"step_ms and its parts: of a micro-batch ({old} → {new} each)")
        return remarks


def known(statistics: Iterable[str], runs: Sequence[Run]) -> list[str]:
    """Return the statistics to show: those of only some runs where one of these has them."""
    missing = {name for name in OF_SOME_RUNS if all(getattr(run, name) is None for run in runs)}
    return [name for name in statistics if name not in missing]


def printed(run: Run, name: str) -> str:
    """Return a statistic of a run as it is printed in a table; "-" where it has none."""
    value = getattr(run, name)
    if value is None:
        return "-"
    if name == "utilization":
        return run.busy_text
    if name in OF_SOME_RUNS:
        return str(percent(value))
    return f"{value:.1f}"


def _ratio(old: float | None, new: float | None) -> float | None:
    return new / old if old and new else None


def _batch_size(run: Run) -> float:
    return max(run.samples, 1) / run.steps


def _blocks_of(run: Run) -> np.ndarray:
    """Return (stretches, 1 + classes): ms per step, all of it and by class."""
    blocks = np.array_split(run.steps_ms, min(BLOCKS, len(run.steps_ms)))
    means = np.array([block.mean(axis=0) for block in blocks])
    return np.column_stack([means.sum(axis=1), means])
