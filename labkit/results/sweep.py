"""A sweep over the values of some knobs: a run for every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from labkit.knobs import Settings, check_names
from labkit.results.comparison import printed
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.spec import KNOBS, Pipeline

OneRun = TypeVar("OneRun", bound=RunData)
COLUMNS = {  # {statistic: its head}
    "throughput": "samples/s",
    "utilization": "busy",
    "wait_ms": "wait ms",
    "compute_ms": "compute ms",
}


class SweptRuns(Result, Generic[OneRun]):
    """The runs of a sweep: one for each of `settings`, or for the first of them where it ended."""

    def __init__(self, pipeline: Pipeline, knobs: Settings):
        """Check every combination before anything runs; raises ValueError naming a bad one."""
        check_names(knobs, KNOBS)
        self.pipeline = pipeline
        self.knobs = {name: _values(name, values) for name, values in knobs.items()}
        if not knobs:
            raise ValueError("a sweep needs a knob and its values: num_workers=[0, 2, 4].")
        products = itertools.product(*self.knobs.values())
        self.settings: list[Settings] = [
            dict(zip(self.knobs, values, strict=True)) for values in products
        ]
        for setting in self.settings:
            pipeline.but(**setting)
        self.runs: list[OneRun] = []

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[OneRun]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> OneRun:
        return self.runs[index]

    @property
    def best(self) -> OneRun | None:
        """The Run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput or 0.0, default=None)

    def table(self) -> Table:
        """Return the knobs, samples/s, busy share, wait and compute of each run."""
        head = (*self.knobs, *COLUMNS.values(), "")
        rows = []
        for setting, run in zip(self.settings, self.runs, strict=False):
            numbers = [printed(run, name) for name in COLUMNS]
            rows.append([*map(repr, setting.values()), *numbers, self._note(run)])
        left = len(self.settings) - len(self.runs)
        return Table(rows, head, foot=(f"({left} not run)",) if left else (), left=())

    def _note(self, run: RunData) -> str:
        """Return what stands behind a run's numbers, or why it has none."""
        if run.throughput is None:
            return run.error or run.outcome
        notes = {"best": run is self.best, "noisy": run.noisy}
        return " ".join(note for note, holds in notes.items() if holds)


def _values(name: str, values: object) -> list[object]:
    """Return the values of a swept knob as a list; raise ValueError where there are none."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        listed = list(values)
        if listed:
            return listed
    raise ValueError(f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4].")
