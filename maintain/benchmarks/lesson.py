"""The lesson holds here: `python maintain/benchmarks/lesson.py [PAIRS]` prints ratios by pair.

The README's claims about the default pipeline come from this script; it exits with 1 where one
of them does not hold.
"""

import sys
from statistics import median

from labkit import Pipeline, machine
from labkit.results.launch import launch


def pairs(before, after, count):
    """Measure two pipelines in turn, `count` times; return (throughput ratio, busy gain) pairs."""
    found = []
    for _ in range(count):
        old, new = launch(before).wait(), launch(after).wait()
        found.append((new.throughput / old.throughput, new.utilization - old.utilization))
        print(f"  {found[-1][0]:.2f}x, busy {old.utilization:.0%} to {new.utilization:.0%}")
    return found


def waiting_of_idle(run):
    """Return which part of the idle time of a step the waiting accounts for."""
    idle = (1 - run.utilization) * run.step_ms
    print(f"  {run.wait_ms:.2f} of {idle:.2f} ms idle a step, busy {run.utilization:.0%}")
    return run.wait_ms / idle


count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
print(machine().line)
print(f"default pipeline, 0 against 6 workers, {count} pairs:")
default = pairs(Pipeline(), Pipeline(num_workers=6), count)
print("io_ms=0 (the cores are the limit), 0 against 2 workers, 5 pairs:")
ratios, gains = zip(*pairs(Pipeline(io_ms=0), Pipeline(io_ms=0, num_workers=2), 5), strict=True)
print("the textbook 50 ms, 0 and 8 workers, 5 pairs; waiting of idle time:")
slow = Pipeline(dataset="sleep", prep_ms=50)
runs = [(launch(slow).wait(), launch(slow.but(num_workers=8)).wait()) for _ in range(5)]
shares = [median(map(waiting_of_idle, each)) for each in zip(*runs, strict=True)]
claims = {
    "default: 2.5x and +0.3 busy in every pair": all(r >= 2.5 and g >= 0.3 for r, g in default),
    "io_ms=0: both up (medians)": median(ratios) > 1 and median(gains) > 0,
    "textbook: busy share rises threefold": all(
        fed.utilization > 3 * starved.utilization for starved, fed in runs
    ),
    f"textbook: waiting is {shares[0]:.0%} and {shares[1]:.0%} of the idle time (medians)": all(
        abs(share - 1) <= 0.10 for share in shares
    ),
}
for claim, holds in claims.items():
    print(f"{'holds' if holds else 'FAILS'}: {claim}")
sys.exit(not all(claims.values()))
