"""The knee of a batch sweep: where the time of a step turns from flat to rising.

A step costs a fixed part (launches, Python, reading the weights) and a part per sample: t(B) =
a + b B. At B = a / b both are equal and the device does half of its best samples/s, 1 / b. Hockney
called that size n-half and fitted it so (Hockney and Jesshope, Parallel Computers 2, section 1.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.results.result import Result, Table

MISFIT = 0.25  # worst relative error of the line up to which the knee is given without a warning


@dataclass(frozen=True, repr=False)
class Knee(Result):
    """t(B) = fixed_ms + sample_ms x B, and what follows."""

    sizes: tuple[int, ...]
    step_ms: tuple[float, ...]
    fixed_ms: float
    sample_ms: float
    runs: tuple[Any, ...] = ()
    source: str = ""  # of times that were not measured here

    # fmt: off
    n_half = property(lambda self: self.fixed_ms / self.sample_ms if self.sample_ms else math.inf,
                      doc="Batch of half the best samples/s, wherever it lies.")
    best_throughput = property(lambda self: 1e3 / self.sample_ms if self.sample_ms else math.inf,
                               doc="Samples/s that the line tends to, 1 / b.")
    # fmt: on

    @property
    def batch_size(self) -> int | None:
        """`n_half` as a whole number; None where it lies outside of the sizes measured."""
        return round(self.n_half) if self.sizes[0] <= self.n_half <= self.sizes[-1] else None

    def predicted_ms(self, batch: float) -> float:
        """Return the line's time of a step of `batch` samples, ms."""
        return self.fixed_ms + self.sample_ms * batch

    @property
    def misfit(self) -> float:
        """The largest relative distance of a measured step time from the line, 0 to 1."""
        points = zip(self.sizes, self.step_ms, strict=True)
        return max(abs(self.predicted_ms(size) / ms - 1) for size, ms in points)

    @property
    def line(self) -> str:
        """The finding, in words."""
        found = f"knee at about {self.batch_size} samples a batch"
        if self.n_half < self.sizes[0]:
            found = f"the knee lies below {self.sizes[0]}, the smallest batch measured"
        elif self.n_half > self.sizes[-1]:
            found = f"the knee lies above {self.sizes[-1]}, the largest batch measured"
        if self.misfit > MISFIT:  # the cost of a sample changes with the batch: a cache overflows
            return f"{found}; NO STRAIGHT LINE: off by up to {self.misfit:.0%}"
        return f"{found} (line within {self.misfit:.0%})"

    def table(self) -> Table:
        """Return each batch measured, beside the line."""
        rows = [
            (size, f"{ms:.3g}", f"{self.predicted_ms(size):.3g}", f"{size / ms * 1e3:,.0f}")
            for size, ms in zip(self.sizes, self.step_ms, strict=True)
        ]
        title = (
            f"Knee: {self.line}; step = {self.fixed_ms:.3g} ms + {self.sample_ms:.3g} ms x batch; "
            f"at best {self.best_throughput:,.0f} samples/s"
        )
        head = ("batch", "compute, ms", "line, ms", "samples/s")
        return Table(rows, head, title, (self.source,), left=())


def knee(sweep: Any) -> Knee:
    """Find the knee of a sweep over `batch_size`; ValueError with fewer than three sizes.

    A size's time is its run's median compute time.
    """
    measured = (run for run in sweep if run.median_compute_ms)
    runs = sorted(measured, key=lambda run: run.pipeline.batch_size)
    sizes = [run.pipeline.batch_size for run in runs]
    return fit(sizes, [run.median_compute_ms for run in runs], tuple(runs))


def fit(sizes: list[int], step_ms: list[float], runs: tuple[Any, ...] = ()) -> Knee:
    """Fit t = a + b B to ascending sizes, with relative errors and neither part negative."""
    if len(set(sizes)) < 3:
        raise ValueError(f"{len(set(sizes))} batch sizes have numbers: a knee needs three or more.")
    size, ms = np.array(sizes, float), np.array(step_ms, float)
    design = np.stack([1 / ms, size / ms], axis=1)  # rows of (a + b B) / t = 1
    fixed, each = np.linalg.lstsq(design, np.ones(len(ms)), rcond=None)[0]
    if fixed < 0:  # all of it is per sample
        fixed, each = 0.0, (size / ms).sum() / ((size / ms) ** 2).sum()
    elif each < 0:  # flat: none of it is
        fixed, each = (1 / ms).sum() / (1 / ms**2).sum(), 0.0
    return Knee(tuple(sizes), tuple(step_ms), float(fixed), float(each), runs)
