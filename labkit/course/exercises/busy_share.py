"""Challenge: the busy share of a window, from the intervals in which kernels ran."""

from __future__ import annotations

import random
from typing import Any

from labkit.bench.workbench import Workbench


def check(answer: Any, bench: Workbench) -> None:
    """Compare with a count of the milliseconds in which something ran."""
    rng, worst = random.Random(3), 0.0
    for _ in range(50):
        starts = [rng.randrange(0, 1000) for _ in range(rng.randrange(0, 12))]
        intervals = [(start, start + rng.randrange(1, 200)) for start in starts]
        start = rng.randrange(0, 500)
        end = start + rng.randrange(100, 500)
        busy = sum(any(a <= ms < b for a, b in intervals) for ms in range(start, end))
        worst = max(worst, abs(answer(list(intervals), start, end) - busy / (end - start)))
    bench.write("share", values={"error": worst})


# -- answers: one that passes, and some that do not ------------------------------------------


def merged(intervals, start, end):
    """The union of the intervals, cut to the window, over its length."""
    busy, until = 0, start
    for begin, stop in sorted(intervals):
        begin, stop = max(begin, until), min(stop, end)
        busy += max(0, stop - begin)
        until = max(until, stop)
    return busy / (end - start)


def counted_twice(intervals, start, end):
    """Two kernels at once are not twice as busy."""
    inside = [max(0, min(stop, end) - max(begin, start)) for begin, stop in intervals]
    return sum(inside) / (end - start)


def not_cut(intervals, start, end):
    """What runs past the window is counted whole."""
    touching = [b - a for a, b in intervals if a < end and b > start]
    return min(1.0, sum(touching) / (end - start))


def any_at_all(intervals, start, end):
    """Looks good on every dashboard."""
    return 1.0 if intervals else 0.0
