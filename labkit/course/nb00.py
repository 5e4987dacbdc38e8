"""Notebook 00, start here: its challenges."""

from __future__ import annotations

import random
from typing import Any

from labkit.course.task import at_least, at_most, code, faster, knobs
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)

knobs(
    "00-first",
    "your first improvement",
    "The images of this pipeline come from a network drive. Make it train at least twice "
    "as many samples a second, by its loader settings alone.",
    faster(2.0),
    hints=(
        "Who prepares the batches while the device computes? With num_workers=0, nobody.",
        "Each worker takes a share of the waiting: try num_workers=4.",
    ),
    base=NETWORK,
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
    solution=NETWORK.but(num_workers=6),
)


@code(
    "00-stopwatch",
    "What does clock() - start measure while the device is still at work?",
    "One call and one wait() before the clock starts; one wait() before it stops.",
    error=at_most(0.02, "error, as a share"),
    calls=at_least(10, "calls"),
)
def stopwatch(answer: Any) -> dict[str, float]:
    """an honest stopwatch.

    A device works behind your back: work() returns at once, wait() returns when all is
    done, and the very first call is slow, because things are being set up. Write a
    function of (work, wait, clock) that returns the milliseconds of one call, from at
    least ten calls; clock() tells the time in ms. It is tried on simulated devices.
    """
    worst, fewest, rng = 0.0, 10**6, random.Random(7)
    for _ in range(6):
        each_ms = rng.uniform(1, 20)
        work, wait, clock, calls = simulated(rng.uniform(100, 500), each_ms)
        worst = max(worst, abs(answer(work, wait, clock) - each_ms) / each_ms)
        fewest = min(fewest, calls())
    return {"error": worst, "calls": fewest}


def simulated(first_ms: float, each_ms: float) -> tuple:
    """Return work, wait, clock and a count of calls of a device whose first call is slow."""
    now = free_at = 0.0
    calls = 0

    def work() -> None:
        nonlocal now, free_at, calls
        now += 0.02  # what a call costs the caller
        free_at = max(free_at, now) + (each_ms if calls else first_ms)
        calls += 1

    def wait() -> None:
        nonlocal now
        now = max(now, free_at)

    return work, wait, lambda: now, lambda: calls


@stopwatch.solved_by
def warmed_and_waited(work, wait, clock):
    """Warm up, wait, time many calls, wait again."""
    work()
    wait()
    start = clock()
    for _ in range(20):
        work()
    wait()
    return (clock() - start) / 20
