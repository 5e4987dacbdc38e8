"""A sweep over the values of some knobs: a run for every combination."""

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
STATISTICS = ("throughput", "utilization", "wait_ms", "compute_ms")


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
    def best(self) -> OneRun | None:
        """The Run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput or 0.0, default=None)

    @property
    def frame(self) -> pandas.DataFrame:
        """A row for each setting: its knobs, what was measured, and the `error` of one without."""
        import pandas

        rows = []
        for setting, run in itertools.zip_longest(self.settings, self.runs):
            measured = {name: getattr(run, name, None) for name in STATISTICS}
            rows.append({**setting, **measured, "error": run.error if run else "not run"})
        return pandas.DataFrame(rows, dtype=object).infer_objects()  # None is a knob's value too

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run, the best bold."""
        best = [row for row, run in enumerate(self.runs) if run is self.best]
        return table_of(self.frame, bold=best)
