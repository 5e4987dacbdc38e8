"""What the benchmarks share: work drawn by lot, how sure what they say of it is, and their claims.

Blocks of one way and then of another cannot resolve 1 %: on a noisy machine two blocks of the same
work differ by 3 to 5 %. So a lot decides, each time anew, which way is timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

RESAMPLES = 4000


def by_lot(ways: Sequence[Callable[[], object]], times: int) -> list[np.ndarray]:
    """Do one of the `ways` `times` times, drawn by lot; return what each call of each took, ns.

    That is CPU time of this thread: where others want the core, wall time is mostly their doing.
    """
    lot = random.Random(0)
    took: list[list[int]] = [[] for _ in ways]
    for _ in range(times):
        drawn = lot.randrange(len(ways))
        start = time.thread_time_ns()
        ways[drawn]()
        took[drawn].append(time.thread_time_ns() - start)
    return [np.array(each) for each in took]


def added(plain: np.ndarray, more: np.ndarray) -> tuple[float, list[float]]:
    """Return what the mean of `more` is above that of `plain`, and its 95 % interval.

    The slowest 1 % of both are left out: what else the machine had to do.
    """
    random_numbers = np.random.default_rng(0)
    means = []
    resampled = []
    for side in (plain, more):
        kept = np.sort(side)[: -len(side) // 100]
        means.append(kept.mean())
        draws = [random_numbers.choice(kept, len(kept)).mean() for _ in range(400)]
        resampled.append(np.array(draws))
    interval = np.percentile(resampled[1] - resampled[0], [2.5, 97.5])
    return float(means[1] - means[0]), interval.tolist()


def all_hold(claims: Mapping[str, bool]) -> bool:
    """Print which claims hold; return whether all do."""
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return all(claims.values())


def median_95(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return the median of what pairs say, and its 95 % interval: the pairs drawn again."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)
