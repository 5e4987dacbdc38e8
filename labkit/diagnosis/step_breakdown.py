"""The average step of a run by class: `run.breakdown()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.results.result import Result, Table
from labkit.results.step_classes import CLASSES

if TYPE_CHECKING:
    from labkit.results.run import Run


@dataclass(frozen=True, repr=False)
class StepBreakdown(Result):
    """The average step of a run by class, ms; the five add up to `step_ms`."""

    step_ms: float
    wait_ms: float
    copy_ms: float
    compute_ms: float  # with what only an x-ray sees: Python, dispatch, gaps between kernels
    launch_ms: float
    other_ms: float
    steps: int

    @property
    def shares(self) -> dict[str, float]:
        """Share (0 to 1) of wall time in each class."""
        return {name: getattr(self, f"{name}_ms") / self.step_ms for name in CLASSES}

    def table(self) -> Table:
        """Return a row for each class, and the step they add up to."""
        rows = [
            (CLASSES[name], f"{part * self.step_ms:.1f}", f"{part:.0%}")
            for name, part in self.shares.items()
        ]
        total = (f"average of {self.steps} steps", f"{self.step_ms:.1f}", "100%")
        return Table([*rows, total], ("class", "ms per step", "share"))


def breakdown(run: Run) -> StepBreakdown | None:
    """Break down the average step of `run`, warm-up excluded; None before two measured steps.

    None also of a watched loop whose device was not timed.
    """
    mean = run.mean_ms
    if mean is None or not mean.any() or run.launches_only:
        return None
    wait, copy, compute, launch, other = mean.tolist()
    return StepBreakdown(
        step_ms=float(mean.sum()),
        wait_ms=wait,
        copy_ms=copy,
        compute_ms=compute,
        launch_ms=launch,
        other_ms=other,
        steps=run.steps - run.warmup,
    )
