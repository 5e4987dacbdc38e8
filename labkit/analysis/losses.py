"""Did the task survive? The loss of runs that should have learned the same, with a tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCE = 0.1  # of the mean loss; the losses of single batches differ by more than that


@dataclass(frozen=True)
class Survival:
    """One run's loss against that of the run it should equal."""

    run: Any
    mean: float  # loss over all steps; NaN where one was not finite
    difference: float  # relative, to the base's

    def within(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the losses agree; False where one is not finite."""
        return bool(abs(self.difference) <= tolerance)


class Losses:
    """`lk.losses(base, other, ...)`: the loss curves of runs on the same batches."""

    def __init__(self, base: Any, *others: Any, tolerance: float = TOLERANCE):
        """Take the run that sets the standard, and those held against it.

        Raises ValueError where the runs did not see the same batches: other data, batch size, seed
        or number of steps.
        """
        self.base, self.others, self.tolerance = base, others, tolerance
        for run in others:
            for knob in ("dataset", "batch_size", "seed", "image_px", "model", "augment"):
                a, b = getattr(base.pipeline, knob), getattr(run.pipeline, knob)
                if a != b:
                    raise ValueError(f"{knob}={b!r} against {a!r}: not the same task.")
        self.steps = min(run.steps for run in (base, *others))

    @property
    def runs(self) -> list[Any]:
        """The base first."""
        return [self.base, *self.others]

    def mean_of(self, run: Any) -> float:
        """Mean loss over the steps that all runs have: slower learning raises it, too.

        Not the loss at the end: where a task is learned that is next to nothing, and any two of
        those differ by a large factor.
        """
        return float(np.mean(self.curve(run)))

    def curve(self, run: Any) -> np.ndarray:
        """The loss of every step that all runs have."""
        return np.array(run.loss[: self.steps])

    @property
    def survivals(self) -> list[Survival]:
        """Each other run against the base."""
        base = self.mean_of(self.base)
        means = [(run, self.mean_of(run)) for run in self.others]
        return [Survival(run, mean, mean / base - 1) for run, mean in means]

    @property
    def survived(self) -> bool:
        """Whether every run's loss is within the tolerance."""
        return all(each.within(self.tolerance) for each in self.survivals)

    def plot(self) -> Any:
        """Draw the curves, as a matplotlib Figure."""
        from labkit.show.losses_figure import draw  # noqa: TID251 -- a door, opened on use

        return draw(self)

    def __repr__(self) -> str:
        lines = [f"{name_of(self.base):24} mean loss {self.mean_of(self.base):.4f}"]
        for each in self.survivals:
            word = "within" if each.within(self.tolerance) else "OUTSIDE"
            lines.append(
                f"{name_of(each.run):24} mean loss {each.mean:.4f}, "
                f"{each.difference:+.1%}: {word} the tolerance of {self.tolerance:.0%}"
            )
        return "\n".join(lines)


def losses(base: Any, *others: Any, tolerance: float = TOLERANCE) -> Losses:
    """Hold the losses of runs on the same batches against those of `base`.

    Args:
        base: The run that sets the standard.
        *others: The runs to judge, all on the same batches.
        tolerance: Relative difference allowed in the mean loss over all steps.

    Raises:
        ValueError: The runs did not train on the same batches.
    """
    return Losses(base, *others, tolerance=tolerance)


def name_of(run: Any) -> str:
    """The format that a run really used: what could not act here is never in the label."""
    mark = f" RECORDED on {run.machine.name}" if run.recorded else ""
    return run.pipeline.precision + mark


def applied(runs: Iterable[Any]) -> tuple[list[Any], dict[str, str]]:
    """Sort runs into those in the format asked for, and {format: why it could not act here}."""
    acting, lacking = [], {}
    for run in runs:
        if "precision" in run.not_applied:
            lacking[run.asked.precision] = run.not_applied["precision"]
        else:
            acting.append(run)
    return acting, lacking
