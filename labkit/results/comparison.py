"""Runs beside each other: one against the one before it, and a sweep over the values of knobs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Generic, TypeVar

from labkit.knobs import Settings, check_names
from labkit.results.measurements import table_of
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.spec import KNOBS, Pipeline

if TYPE_CHECKING:
    import pandas

OneRun = TypeVar("OneRun", bound=RunData)
COMPARED = ("throughput", "step_ms", "wait_ms", "copy_ms", "compute_ms", "other_ms")
SWEPT = ("throughput", "utilization", "wait_ms", "compute_ms")
LEAST_NOISE = 0.02  # relative difference of throughput that two runs may always have


class ComparedRuns(Result):
    """The run `after` against the run `before`: what was changed, and what it brought."""

    def __init__(self, before: RunData, after: RunData):
        self.before = before
        self.after = after
        asked = before.asked.to_dict()
        old = before.pipeline.to_dict()
        new = after.pipeline.to_dict()
        self.changed: dict[str, tuple[object, object]] = {
            name: (old[name], new[name])
            for name, value in after.asked.to_dict().items()
            if value != asked[name] and old[name] != new[name]
        }
        """{knob: (before, after)} of the knobs that were asked for, and ran, with other values."""

    @property
    def speedup(self) -> float | None:
        """Throughput after over before; None where either has none."""
        old = self.before.throughput
        new = self.after.throughput
        return new / old if old and new else None

    @property
    def verdict(self) -> str:
        """One sentence on what the change brought, if more than the two runs' own unevenness."""
        if self.speedup is None:
            return "One of the runs has no numbers to compare."
        mark = f" {where}." if (where := self.before.mark or self.after.mark) else ""
        noise = max(self.before.spread or 0.0, self.after.spread or 0.0, LEAST_NOISE)
        if abs(self.speedup - 1) <= noise:
            return f"No difference beyond the noise ({self.speedup:.2f}x).{mark}"
        word = "faster" if self.speedup > 1 else "slower"
        return f"{max(self.speedup, 1 / self.speedup):.2f}x {word}.{mark}"

    def table(self) -> Table:
        """Return the changed knobs and the numbers, before and after, with the verdict below."""
        rows = [[name, *map(repr, pair), ""] for name, pair in self.changed.items()]
        rows.append(["utilization", self.before.busy_text, self.after.busy_text, ""])
        for name in COMPARED:
            pair = [getattr(run, name) for run in (self.before, self.after)]
            is_told = all(ms and ms > 0.05 for ms in pair)  # else it is a ratio of noise
            ratio = f"{pair[1] / pair[0]:.2f}x" if is_told else ""
            rows.append([name, *(each and f"{each:,.1f}" for each in pair), ratio])
        return Table(rows, ("", "before", "after", "ratio"), foot=(self.verdict,))


class SweptRuns(Result, Generic[OneRun]):
    """The runs of a sweep: one for each of `settings`, or for the first of them where it ended."""

    def __init__(self, pipeline: Pipeline, knobs: Settings):
        """Check every combination before anything runs; raises ValueError naming a bad one."""
        check_names(knobs, KNOBS)
        if not knobs:
            raise ValueError("a sweep needs a knob and its values: num_workers=[0, 2, 4].")
        for name, values in knobs.items():
            if not isinstance(values, (list, tuple, range)) or not values:
                raise ValueError(
                    f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4]."
                )
        self.pipeline = pipeline
        self.knobs = {name: list(values) for name, values in knobs.items()}
        self.settings: list[Settings] = [
            dict(zip(self.knobs, values, strict=True))
            for values in itertools.product(*self.knobs.values())
        ]
        for setting in self.settings:
            pipeline.but(**setting)
        self.runs: list[OneRun] = []

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> OneRun:
        return self.runs[index]

    @property
    def frame(self) -> pandas.DataFrame:
        """A row for each setting: its knobs, what was measured, and the `error` of one without."""
        import pandas

        rows = []
        for setting, run in itertools.zip_longest(self.settings, self.runs):
            measured = {name: getattr(run, name, None) for name in SWEPT}
            rows.append({**setting, **measured, "error": run.error if run else "not run"})
        return pandas.DataFrame(rows, dtype=object).infer_objects()  # None is a knob's value too

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run."""
        return table_of(self.frame)
