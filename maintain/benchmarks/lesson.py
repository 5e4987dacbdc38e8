"""The lesson holds here: `python maintain/benchmarks/lesson.py [PAIRS]` prints ratios by pair.

CONTRIBUTING's claims about the default pipeline come from this script; it exits with 1 where one
of them does not hold.
"""

from __future__ import annotations

import sys
from statistics import median

from labkit import Pipeline, machine
from labkit.results.launch import launch
from labkit.results.run import Run


def pairs_of(starved: Pipeline, fed: Pipeline, count: int) -> list[tuple[Run, Run]]:
    """Measure two pipelines in turn, `count` times."""
    pairs = []
    for _ in range(count):
        before = launch(starved).wait()
        after = launch(fed).wait()
        ratio = after.throughput / before.throughput
        print(f"  {ratio:.2f}x, busy {before.utilization:.0%} to {after.utilization:.0%}")
        pairs.append((before, after))
    return pairs


def waiting_of_idle(runs: list[Run]) -> float:
    """Return which part of the idle time of a step the waiting accounts for (median)."""
    return median(run.wait_ms / ((1 - run.utilization) * run.step_ms) for run in runs)


count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
print(machine().line)
print(f"default pipeline, 0 against 6 workers, {count} pairs:")
default = pairs_of(Pipeline(), Pipeline(num_workers=6), count)
print("io_ms=0 (the cores are the limit), 0 against 2 workers, 5 pairs:")
decoding = pairs_of(Pipeline(io_ms=0), Pipeline(io_ms=0, num_workers=2), 5)
print("the textbook 50 ms, 0 against 8 workers, 5 pairs:")
slow = Pipeline(dataset="sleep", prep_ms=50)
textbook = pairs_of(slow, slow.but(num_workers=8), 5)
shares = [waiting_of_idle(list(runs)) for runs in zip(*textbook, strict=True)]
claims = {
    "default: 2.5x and +0.3 busy in every pair": all(
        fed.throughput >= 2.5 * starved.throughput and fed.utilization >= starved.utilization + 0.3
        for starved, fed in default
    ),
    "io_ms=0: both up (medians)": (
        median(fed.throughput / starved.throughput for starved, fed in decoding) > 1
        and median(fed.utilization - starved.utilization for starved, fed in decoding) > 0
    ),
    "textbook: busy share rises threefold": all(
        fed.utilization > 3 * starved.utilization for starved, fed in textbook
    ),
    f"textbook: waiting is {shares[0]:.0%} and {shares[1]:.0%} of the idle time (medians)": all(
        abs(share - 1) <= 0.10 for share in shares
    ),
}
for claim, holds in claims.items():
    print(f"{'holds' if holds else 'FAILS'}: {claim}")
sys.exit(not all(claims.values()))
