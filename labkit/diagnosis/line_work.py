"""What the sampled lines of a loop show of the work of its body."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.hot_lines import Line, Lines

PERIODIC = "periodic"


@dataclass(frozen=True)
class LongSteps:
    """The long steps that some work makes."""

    count: int  # of these steps
    every: int | None = None  # steps from one to the next, where they come regularly


@dataclass(frozen=True)
class PartOfLoop:
    """What a part of the loop does, and the lines that it does it in."""

    cause: str
    lines: tuple[Line, ...]
    share: float = 0.0  # of that part, in the first of the lines
    long_steps: LongSteps | None = None  # in which steps, where they are few or regular


def work_of(lines: Lines, part: str, spent: np.ndarray) -> PartOfLoop:
    """Return what a part of the body does; `spent` (steps,) is how long each body took, s."""
    mask = lines.of_part(part)
    when = long_steps(lines, mask, spent)
    begins = lines.around(mask, "site")[:1] if when else ()  # such work is known by that line
    shown = (*begins, *lines.worst(mask))
    body = float(lines.share[lines.mask("body")].sum())
    share = shown[0].share / max(body, 1e-9) if shown else 0.0
    return PartOfLoop(PERIODIC if when else part, shown, share, when)


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
