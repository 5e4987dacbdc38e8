"""Which steps are long for some work of a loop's body, as its sampled lines show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Lines


@dataclass(frozen=True)
class LongSteps:
    """The long steps that some work makes."""

    count: int  # of these steps
    every: int | None = None  # steps from one to the next, where they come regularly


def long_steps(lines: Lines, mask: np.ndarray, spent: np.ndarray) -> LongSteps | None:
    """Return the long steps that the masked samples' work makes; None where it makes none.

    `spent` (steps,) is how long each body took, s.
    """
    usual = float(np.median(spent))
    step = lines.step[mask]
    share = lines.share[mask]
    long = spent[step] > limits.LONG * usual
    steps = np.unique(step[long])
    if share[long].sum() < limits.IN_LONG_STEPS * share.sum() or len(steps) < 2:
        return None
    gaps = np.diff(steps)
    every = int(np.median(gaps))
    missed = np.abs(gaps - every * np.round(gaps / every)) <= 1  # some may have had no sample
    if len(gaps) > 1 and every > 2 and missed.mean() >= limits.REGULAR:
        return LongSteps(len(steps), every)
    few = len(steps) <= limits.FEW_LONG_STEPS * len(spent)
    return LongSteps(len(steps)) if few else None
