"""What the benchmarks share: how sure a median over pairs is."""

from __future__ import annotations

import numpy as np


def median_95(pairs: np.ndarray) -> tuple[float, float, float]:
    """Return the median of what each pair says, and its 95 % interval: pairs drawn again.

    Of rows with two columns it is the ratio of their medians, the first over the second.
    """
    pairs = np.array(pairs, float).reshape(len(pairs), -1)
    drawn = np.random.default_rng(0).integers(0, len(pairs), (4000, len(pairs)))
    medians = np.vstack([np.median(pairs, axis=0), np.median(pairs[drawn], axis=1)]).T
    said = medians[0] / medians[1] if len(medians) == 2 else medians[0]
    low, high = np.percentile(said[1:], [2.5, 97.5])
    return float(said[0]), float(low), float(high)
