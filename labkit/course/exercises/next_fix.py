"""Challenge: which part of a step to fix first."""

from __future__ import annotations

import random
from typing import Any

from labkit.bench.workbench import Workbench

PARTS = ("data", "copies", "compute", "launches", "update")


def check(answer: Any, bench: Workbench) -> None:
    """Compare with the part whose fix saves the most time."""
    rng, wrong = random.Random(11), 0
    for _ in range(100):
        times = {part: rng.randrange(1, 100) for part in PARTS}
        speedups = {part: rng.uniform(1.05, 20) for part in rng.sample(PARTS, 4)}
        saved = {part: times[part] * (1 - 1 / speedups[part]) for part in speedups}
        wrong += answer(dict(times), dict(speedups)) != max(saved, key=saved.get)
    bench.write("choices", values={"wrong": wrong})


# -- answers: one that passes, and some that do not ------------------------------------------


def most_saved(times_ms, speedups):
    """Amdahl: what counts is the time that goes away."""
    return max(speedups, key=lambda part: times_ms[part] * (1 - 1 / speedups[part]))


def largest_speedup(times_ms, speedups):
    """Twenty times as fast, of a thousandth of the step."""
    return max(speedups, key=speedups.get)


def largest_part(times_ms, speedups):
    """The longest part, even where there is next to nothing to gain."""
    return max(speedups, key=times_ms.get)


def always_data(times_ms, speedups):
    """It is so often the data."""
    return "data"
