"""One run against the run before it: what was changed, and what it brought."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import CLASSES

if TYPE_CHECKING:
    import pandas

COMPARED = (
    "throughput",
    "utilization",
    "step_ms",
    "wait_ms",
    "copy_ms",
    "compute_ms",
    "other_ms",
)
LEAST_NOISE = 0.02  # relative difference of throughput that two runs may always have
# Neighbouring steps are alike, so noise is measured between the means of BLOCKS stretches of a run,
# not between steps. A part that differs by less than LEAST of the step is not mentioned
BLOCKS = 20
LEAST = 0.02
LEAST_STEPS = 5  # that both runs need for a comparison of their parts
WORDS = {"step": "a step"} | CLASSES


class ComparedRuns(Result):
    """The run `after` against the run `before`: what was changed, and what it brought."""

    def __init__(self, before: RunData, after: RunData):
        self.before = before
        self.after = after

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """{knob: (before, after)} of the knobs that were asked for, and ran, with other values."""
        old = self.before.pipeline.to_dict()
        new = self.after.pipeline.to_dict()
        asked = self.before.asked.to_dict()
        differ = [
            name for name, value in self.after.asked.to_dict().items() if value != asked[name]
        ]
        return {name: (old[name], new[name]) for name in differ if old[name] != new[name]}

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
    def parts(self) -> pandas.DataFrame:
        """The average step and the classes of its time, a row each; none where a run is too short.

        Columns: `before_ms`, `after_ms`, the 95 % interval of the difference, `low_ms` to
        `high_ms`, and whether that is `slower` or `faster` beyond the noise. Steps of other batch
        sizes are scaled to the samples of `before`.
        """
        import pandas

        if min(len(self.before.steps_ms), len(self.after.steps_ms)) < LEAST_STEPS:
            return pandas.DataFrame(
                columns=["before_ms", "after_ms", "slower", "faster"], dtype=bool
            )
        old = _blocks_of(self.before)
        new = _blocks_of(self.after) * (_batch_size(self.before) / _batch_size(self.after))
        more_ms = new.mean() - old.mean()
        margin_ms = 1.96 * np.sqrt(old.var() / len(old) + new.var() / len(new))
        least_ms = np.maximum(margin_ms, LEAST * old["step"].mean())
        columns = {
            "before_ms": old.mean(),
            "after_ms": new.mean(),
            "low_ms": more_ms - margin_ms,
            "high_ms": more_ms + margin_ms,
            "slower": more_ms > least_ms,
            "faster": more_ms < -least_ms,
        }
        return pandas.DataFrame(columns)

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as JSON types."""
        return {
            "speedup": self.speedup,
            "significant": self.significant,
            "verdict": self.verdict,
            "changed": self.changed,
            "parts": self.parts.rename_axis("name").reset_index().to_dict("records"),
            "slower": list(self.parts.index[self.parts["slower"]]),
        }

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [(name, repr(old), repr(new), "") for name, (old, new) in self.changed.items()]
        for name in COMPARED:
            old = getattr(self.before, name)
            new = getattr(self.after, name)
            texts = (printed(self.before, name), printed(self.after, name))
            ratio = f"{new / old:.2f}x" if old and new and texts[0] != texts[1] else ""
            rows.append((name, *texts, ratio))
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict, *self._remarks()))

    def _remarks(self) -> list[str]:
        """Say which parts changed beyond the noise."""
        remarks = []
        for word in ("slower", "faster"):
            parts = [
                f"{WORDS[name]} {part.after_ms - part.before_ms:+.2f} ms "
                f"(95%: {part.low_ms:+.2f} to {part.high_ms:+.2f})"
                for name, part in self.parts[self.parts[word]].iterrows()
            ]
            if parts:
                remarks.append(f"{word} beyond the noise: {', '.join(parts)}")
        return remarks


def printed(run: RunData, name: str) -> str:
    """Return a statistic of a run as it is printed in a table; "-" where it has none."""
    value = getattr(run, name)
    if name == "utilization":
        return run.busy_text
    return "-" if value is None else f"{value:.1f}"


def _batch_size(run: RunData) -> float:
    return max(run.samples, 1) / run.steps


def _blocks_of(run: RunData) -> pandas.DataFrame:
    """Return the mean step of each stretch of a run, and its parts, ms."""
    import pandas

    blocks = np.array_split(run.steps_ms, min(BLOCKS, len(run.steps_ms)))
    table = pandas.DataFrame([block.mean(axis=0) for block in blocks], columns=[*CLASSES])
    table.insert(0, "step", table.sum(axis=1))
    return table
