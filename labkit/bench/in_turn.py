"""Time several ways of doing the same in turn, so that a neighbour on the machine disturbs all."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from labkit.bench.workbench import Workbench

ROUNDS = 7
FILL_S = 2e-3  # a time is the mean of as many calls as take this long


def in_turn(
    ways: dict[str, Callable[[], object]], bench: Workbench, rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Time each way once in every round; return per way the time of one call in s, by round."""
    calls, times = {}, {name: [] for name in ways}
    for name, work in ways.items():
        timed(work, 1, bench)  # warms up
        calls[name] = max(1, int(FILL_S / max(timed(work, 1, bench), 1e-7)))
    for _ in range(rounds):
        for name, work in ways.items():
            times[name].append(timed(work, calls[name], bench))
    return times


def timed(work: Callable[[], object], calls: int, bench: Workbench) -> float:
    """Time of one call in s, the device awaited at the end."""
    bench.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    bench.synchronize()
    return (time.perf_counter() - start) / calls


def paired_gain(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times as long `slow` took, round by round: the median, and IQR over median.

    What slows the whole machine for a while slows both sides of a round, and cancels.
    """
    low, middle, high = np.percentile(np.array(slow) / np.array(fast), [25, 50, 75])
    return {"gain": float(middle), "spread": float((high - low) / middle)}
