"""Did the task survive a change? The losses of two runs that should have learned the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TOLERANCE = 0.1  # of the mean loss; the losses of single batches differ by more than that
STANDARD_ERRORS = 3  # of the mean difference, that chance makes


def agree(
    before: Sequence[float], after: Sequence[float], tolerance: float
) -> tuple[bool, float | None]:
    """Return whether two runs' losses, step by step, agree, and the means' relative difference.

    They do within `tolerance` of the mean. Random augmentation may make it up to TOLERANCE, if that
    is within three standard errors of the differences. None: there is no loss, or one is not
    finite.
    """
    count = min(len(before), len(after))
    first = np.array(before[:count], float)
    second = np.array(after[:count], float)
    if not np.isfinite(first).any():
        return True, None  # the step returns none
    if not np.isfinite(second).all():
        return False, None
    differences = second - first
    mean = max(abs(float(first.mean())), 1e-12)
    difference = float(differences.mean()) / mean
    chance = STANDARD_ERRORS * float(differences.std() / np.sqrt(count)) / mean
    return abs(difference) <= max(tolerance, min(chance, TOLERANCE)), difference
