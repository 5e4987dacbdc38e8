"""One run against the run before it: what was changed, and what it brought."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.result import Result, Table, percent
from labkit.results.step_classes import CLASSES

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
OF_SOME_RUNS = ("mfu", "mbu", "padding", "real_tokens_per_s")  # statistics that few runs have
TINY = 0.01  # share of a step: of what is below it on both sides the ratio says nothing
LEAST_NOISE = 0.02  # relative difference of throughput that two runs may always have
# Neighbouring steps are alike, so BLOCKS stretches of a run are drawn anew, not steps; differences
# of a part below LEAST of the step are not worth a word
BLOCKS = 20
DRAWS = 1000
LEAST = 0.02
LEAST_STEPS = 5  # of a run whose parts are compared


@dataclass(frozen=True)
class Part:
    """A part of the average step before and after, ms."""

    name: str  # "step", or a class of its time
    before_ms: float
    after_ms: float
    low_ms: float  # 95 % interval of the difference (bootstrap over stretches of both runs)
    high_ms: float
    slower: bool  # beyond the noise
    faster: bool

    @property
    def change_ms(self) -> float:
        """How much longer it takes, ms."""
        return self.after_ms - self.before_ms

    def __str__(self) -> str:
        what = CLASSES.get(self.name, "a step")
        return f"{what} {self.change_ms:+.2f} ms (95%: {self.low_ms:+.2f} to {self.high_ms:+.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        values = asdict(self)
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in values.items()
        }


class Comparison(Result):
    """The Run `after` against the Run `before`: what was changed, and what it brought."""

    def __init__(self, before: Run, after: Run):
        self.before = before
        self.after = after

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """{knob: (before, after)} of the knobs that differ in what ran, and were asked for."""
        old = self.before.pipeline.to_dict()
        new = self.after.pipeline.to_dict()
        asked = [run.asked.to_dict() for run in (self.before, self.after)]
        changed = {}
        for name in old:
            is_asked = any(knobs[name] is not None for knobs in asked)
            if is_asked and old[name] != new[name]:
                changed[name] = (old[name], new[name])
        return changed

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        old = self.before.throughput
        new = self.after.throughput
        return new / old if old and new else None

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
    def parts(self) -> tuple[Part, ...]:
        """The step and the classes of its time, before and after; () where a run is too short.

        Steps of other batch sizes are scaled to the samples of `before`.
        """
        old = _blocks_of(self.before)
        new = _blocks_of(self.after)
        if not len(old) or not len(new):
            return ()
        new *= _batch_size(self.before) / max(_batch_size(self.after), 1e-9)
        rng = np.random.default_rng(0)
        old_draws = rng.integers(0, len(old), (DRAWS, len(old)))
        new_draws = rng.integers(0, len(new), (DRAWS, len(new)))
        differences = new[new_draws].mean(axis=1) - old[old_draws].mean(axis=1)
        low, high = np.percentile(differences, [2.5, 97.5], axis=0)
        old_ms = old.mean(axis=0)
        new_ms = new.mean(axis=0)
        least_ms = LEAST * old_ms[0]
        parts = []
        for place, name in enumerate(("step", *CLASSES)):
            change_ms = new_ms[place] - old_ms[place]
            part = Part(
                name=name,
                before_ms=float(old_ms[place]),
                after_ms=float(new_ms[place]),
                low_ms=float(low[place]),
                high_ms=float(high[place]),
                slower=bool(low[place] > 0 and change_ms > least_ms),
                faster=bool(high[place] < 0 and change_ms < -least_ms),
            )
            parts.append(part)
        return tuple(parts)

    def slower_by(self, limit: float) -> bool:
        """Return whether a step takes over `limit` (0.05 is 5 %) longer, beyond the noise."""
        if not self.parts:
            return False
        step = self.parts[0]
        return step.slower and step.change_ms > limit * step.before_ms

    def plot(self) -> Figure:
        """Draw both runs on one time scale, the earlier one above, as a matplotlib Figure."""
        from labkit.view.pair_figure import draw_pair

        return draw_pair(self.before, self.after)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        return {
            "speedup": self.speedup,
            "significant": self.significant,
            "verdict": self.verdict,
            "changed": self.changed,
            "parts": [part.to_dict() for part in self.parts],
            "slower": [part.name for part in self.parts if part.slower],
        }

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [(name, repr(old), repr(new), "") for name, (old, new) in self.changed.items()]
        for name in (*COMPARED, *OF_SOME_RUNS):
            known = getattr(self.before, name) is not None or getattr(self.after, name) is not None
            if known or name in COMPARED:
                rows.append(self._row(name))
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict, *self._remarks()))

    def _row(self, name: str) -> tuple[str, str | None, str | None, str | None]:
        """Return a statistic before and after, as printed, and its ratio."""
        old = getattr(self.before, name)
        new = getattr(self.after, name)
        ratio = f"{new / old:.2f}x" if old and new else ""
        if name == "utilization" and old is not None and new is not None:
            return name, self.before.busy_text, self.after.busy_text, ratio
        if name.endswith("_ms") and old is not None and new is not None:
            largest = max(old / self.before.step_ms, new / self.after.step_ms)
            ratio = None if largest < TINY else ratio
        return name, printed(name, old), printed(name, new), ratio

    def _remarks(self) -> list[str]:
        """Return which parts changed beyond the noise, and what a step is where that differs."""
        remarks = []
        slower = [str(part) for part in self.parts if part.slower]
        if slower:
            remarks.append(f"slower beyond the noise: {', '.join(slower)}")
        faster = [str(part) for part in self.parts if part.faster]
        if faster:
            remarks.append(f"faster beyond the noise: {', '.join(faster)}")
        old = self.before.pipeline.accumulation_steps
        new = self.after.pipeline.accumulation_steps
        if old != new:
            remarks.append(f"step_ms and its parts: of a micro-batch ({old} → {new} each)")
        return remarks


def printed(name: str, value: float | None) -> str | None:
    """Return a statistic of a run as it is printed in a table."""
    if value is None:
        return None
    if name in ("mfu", "mbu", "padding"):
        return percent(value)
    return f"{value:,.0f}" if name == "real_tokens_per_s" else f"{value:.1f}"


def _batch_size(run: Run) -> float:
    return run.samples / run.steps


def _blocks_of(run: Run) -> np.ndarray:
    """Return (stretches, 1 + classes): ms per step, all of it and by class; none if too short."""
    steps_ms = run.steps_ms
    if len(steps_ms) < LEAST_STEPS:
        return np.zeros((0, 1 + len(CLASSES)))
    blocks = np.array_split(steps_ms, min(BLOCKS, len(steps_ms)))
    means = np.array([block.mean(axis=0) for block in blocks])
    return np.column_stack([means.sum(axis=1), means])
