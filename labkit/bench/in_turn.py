"""Time several ways of doing the same in turn, so that a neighbour on the machine disturbs all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from labkit.bench.workbench import Workbench

ROUNDS = 7


def in_turn(
    ways: dict[str, Callable[[], object]],
    bench: Workbench,
    rounds: int = ROUNDS,
    setting: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> dict[str, list[float]]:
    """Time each way once in every round; return per way the time of one call in s, by round.

    `setting(name)` is entered around a way's calls, outside of the clock.
    """
    calls, times = {}, {name: [] for name in ways}
    for name, work in ways.items():
        with setting(name):
            calls[name] = bench.calls_to_fill(work)
    for _ in range(rounds):
        for name, work in ways.items():
            with setting(name):
                times[name].append(bench.timed(work, calls[name]))
    return times


def paired_gain(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times as long `slow` took, round by round: the median, and IQR over median.

    What slows the whole machine for a while slows both sides of a round, and cancels.
    """
    low, middle, high = np.percentile(np.array(slow) / np.array(fast), [25, 50, 75])
    return {"gain": float(middle), "spread": float((high - low) / middle)}
