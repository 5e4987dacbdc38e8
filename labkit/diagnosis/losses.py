"""Did the task survive? The loss of runs that should have learned the same, with a tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLERANCE = 0.1  # of the mean loss; the losses of single batches differ by more than that
# Knobs of a task
SAME = ("dataset", "batch_size", "seed", "image_px", "model", "augment", "context", "batching")


@dataclass(frozen=True, repr=False)
class Losses(Result):
    """The loss curves of runs on the same batches, the first of which sets the standard."""

    runs: tuple[Any, ...]
    tolerance: float

    def curve(self, run: Any) -> np.ndarray:
        """Return the loss of every step that all runs have."""
        return np.array(run.loss[: min(run.steps for run in self.runs)])

    def difference(self, run: Any) -> float:
        """Return how far a run's mean loss is from the first run's, relative to that."""
        # The loss at the end is next to nothing: two of those differ by a large factor
        return float(np.mean(self.curve(run)) / np.mean(self.curve(self.runs[0]))) - 1

    def within(self, run: Any) -> bool:
        """Return whether a run's loss agrees with the first's; False where one is not finite."""
        return abs(self.difference(run)) <= self.tolerance

    survived = property(lambda self: all(map(self.within, self.runs[1:])),
                        doc="Whether every run's loss is within the tolerance.")  # fmt: skip

    def plot(self) -> Figure:
        """Draw the loss curves, throughput and memory."""
        from labkit.view.analysis_figures import draw_losses

        return draw_losses(self)

    def table(self) -> Table:
        """Return the mean loss of every run, and how far it is from the first run's."""
        rows = []
        for run in self.runs:
            word = f"{'within' if self.within(run) else 'OUTSIDE'} the tolerance of "
            held = (f"{self.difference(run):+.1%}", f"{word}{self.tolerance:.0%}")
            mean = f"{np.mean(self.curve(run)):.4f}"
            rows.append((name_of(run), mean, *(held if rows else ("", ""))))
        return Table(rows, head=("", "mean loss", "difference", ""), left=(0, 3))


def losses(base: Any, *others: Any, tolerance: float = TOLERANCE) -> Losses:
    """Hold the mean losses of runs against that of `base`, up to a relative `tolerance`.

    Raises ValueError where they did not train on the same batches: other data, size or seed.
    """
    for run in others:
        for knob in SAME:
            a, b = getattr(base.pipeline, knob), getattr(run.pipeline, knob)
            if a != b:
                raise ValueError(f"{knob}={b!r} against {a!r}: not the same task.")
    return Losses((base, *others), tolerance)


def name_of(run: Any) -> str:
    """Return the format that a run really used: what could not act here is never in the label."""
    mark = f" RECORDED on {run.machine.name}" if run.recorded else ""
    return run.pipeline.precision + mark


def applied(runs: Iterable[Any]) -> tuple[list[Any], dict[str, str]]:
    """Sort runs into those in the format asked for, and {format: why it could not act here}."""
    runs = [(run, run.not_applied.get("precision")) for run in runs]
    lacking = {run.asked.precision: why for run, why in runs if why}
    return [run for run, why in runs if not why], lacking


def agree(before: Any, after: Any, tolerance: float) -> tuple[bool, float | None]:
    """Return whether two runs' losses, step by step, agree, and the means' relative difference.

    Within `tolerance` of the mean they do; random augmentation may part them up to TOLERANCE, if
    that is within three standard errors of the differences. None, None: there are none to compare.
    """
    count = min(len(before), len(after))
    one, other = np.array(before[:count], float), np.array(after[:count], float)
    if not np.isfinite(one).any():
        return True, None  # the step returns none
    if not np.isfinite(other).all():
        return False, None
    apart = other - one
    difference = float(apart.mean() / max(abs(one.mean()), 1e-12))
    error = 3 * float(apart.std() / np.sqrt(count)) / max(abs(one.mean()), 1e-12)
    return abs(difference) <= max(tolerance, min(error, TOLERANCE)), difference
