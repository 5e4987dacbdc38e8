"""One knob, or several, tried at several values: isolated runs, one after the other."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from typing import Any

from labkit.lab.pipeline import Pipeline, check_names
from labkit.lab.run import Run


class Sweep:
    """The runs of a sweep, in the order of the product of its knobs' values.

    `runs` may be shorter than `pipelines`: a sweep that was interrupted keeps what it has.
    """

    def __init__(self, pipeline: Pipeline, knobs: dict[str, list[Any]]):
        """Check every combination before anything runs; raises ValueError naming a bad one."""
        check_names(knobs)
        self.pipeline = pipeline
        self.knobs = {name: _values(name, values) for name, values in knobs.items()}
        products = itertools.product(*self.knobs.values())
        self.settings = [dict(zip(self.knobs, values, strict=True)) for values in products]
        self.pipelines = [pipeline.but(**setting) for setting in self.settings]
        self.runs: list[Run] = []

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def best(self) -> Run | None:
        """The run with the highest throughput; None where none has numbers."""
        measured = [run for run in self.runs if run.throughput]
        return max(measured, key=lambda run: run.throughput, default=None)

    def to_list(self) -> list[dict[str, Any]]:
        """Every run's statistics, as JSON types."""
        return [run.to_dict() for run in self.runs]

    def plot(self) -> Any:
        """Draw throughput and utilization against the knob as a matplotlib Figure."""
        from labkit.show import plots  # noqa: TID251 -- a door to the floor above, opened on use

        return plots.draw_sweep(self)

    def rows(self) -> list[tuple[str, ...]]:
        """The table: the knobs, samples/s, busy share, wait and compute, every cell as text."""
        rows = [(*self.knobs, "samples/s", "busy", "wait ms", "compute ms", "")]
        for setting, run in zip(self.settings, self.runs, strict=False):
            cells = [repr(value) for value in setting.values()]
            if run.throughput is None:
                rows.append((*cells, "-", "-", "-", "-", run.error or run.outcome))
                continue
            best = "best" if run is self.best else ""
            rows.append(
                (
                    *cells,
                    f"{run.throughput:.0f}",
                    f"{run.utilization:.0%}",
                    f"{run.wait_ms:.1f}",
                    f"{run.compute_ms:.1f}",
                    f"{best} {'noisy' if run.noisy else ''}".strip(),
                )
            )
        return rows

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        left = len(self.pipelines) - len(self.runs)
        return "\n".join(lines + ([f"({left} not run)"] if left else []))

    def _repr_html_(self) -> str:
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        return f"<table>{body}</table>"


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name}={values!r}: a sweep needs several values, such as [0, 2, 4].")
    values = list(values)
    if not values:
        raise ValueError(f"{name}=[]: a sweep needs at least one value.")
    return values
