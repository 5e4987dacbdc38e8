"""Challenge: time an operation on a device that works behind the caller's back."""

from __future__ import annotations

import random
from typing import Any

from labkit.bench.workbench import Workbench

ISSUE_MS = 0.02  # what a call costs the caller


def check(answer: Any, bench: Workbench) -> None:
    """Let the answer time simulated devices, whose clocks have no noise."""
    worst, fewest, rng = 0.0, 10**6, random.Random(7)
    for _ in range(6):
        each_ms = rng.uniform(1, 20)
        work, wait, clock, calls = simulated(rng.uniform(100, 500), each_ms)
        worst = max(worst, abs(answer(work, wait, clock) - each_ms) / each_ms)
        fewest = min(fewest, calls())
    bench.write("timing", values={"error": worst, "calls": fewest})


def simulated(first_ms: float, each_ms: float) -> tuple:
    """Return work, wait, clock and a count of calls of a device whose first call is slow."""
    now = free_at = 0.0
    calls = 0

    def work() -> None:
        nonlocal now, free_at, calls
        now += ISSUE_MS
        free_at = max(free_at, now) + (each_ms if calls else first_ms)
        calls += 1

    def wait() -> None:
        nonlocal now
        now = max(now, free_at)

    return work, wait, lambda: now, lambda: calls


# -- answers: one that passes, and some that do not ------------------------------------------


def warmed_and_waited(work, wait, clock):
    """Warm up, wait, time many calls, wait again."""
    work()
    wait()
    start = clock()
    for _ in range(20):
        work()
    wait()
    return (clock() - start) / 20


def no_wait(work, wait, clock):
    """Times how fast the calls can be issued."""
    work()
    start = clock()
    for _ in range(20):
        work()
    return (clock() - start) / 20


def cold(work, wait, clock):
    """The first call is in it."""
    start = clock()
    for _ in range(20):
        work()
    wait()
    return (clock() - start) / 20


def constant(work, wait, clock):
    """Says what it likes."""
    for _ in range(20):
        work()
    return 10.0
