"""The lesson holds here: `python tests/benchmarks/lesson.py [PAIRS]` prints ratios, pair by pair.

The README's claims about the default pipeline come from this script; it exits with 1 where one
of them does not hold.
"""

import statistics
import sys

from labkit import Pipeline, machine
from labkit.lab.launcher import launch


def pairs(before, after, count):
    """Measure two pipelines in turn, `count` times; return (throughput ratio, busy gain) pairs."""
    found = []
    for _ in range(count):
        old, new = launch(before).wait(), launch(after).wait()
        found.append((new.throughput / old.throughput, new.utilization - old.utilization))
        print(f"  {found[-1][0]:.2f}x, busy {old.utilization:.0%} to {new.utilization:.0%}")
    return found


def idle_is_waiting(pipeline):
    """Return idle time and median waiting per step, ms, of one run."""
    run = launch(pipeline).wait()
    idle = (1 - run.utilization) * run.step_ms
    print(f"  idle {idle:.2f} ms a step, waiting {run.wait_ms:.2f} ms, busy {run.utilization:.0%}")
    return idle, run.wait_ms, run


def main(count):
    print(machine().line)
    print(f"default pipeline, 0 against 6 workers, {count} pairs:")
    default = pairs(Pipeline(), Pipeline(num_workers=6), count)
    print("io_ms=0 (the cores are the limit), 0 against 2 workers, 5 pairs:")
    cores = pairs(Pipeline(io_ms=0), Pipeline(io_ms=0, num_workers=2), 5)
    print("the textbook 50 ms, 0 and 8 workers:")
    slow = idle_is_waiting(Pipeline(dataset="sleep", prep_ms=50))
    fast = idle_is_waiting(Pipeline(dataset="sleep", prep_ms=50, num_workers=8))
    claims = {
        "default: 2.5x and +0.3 busy in every pair": all(r >= 2.5 and g >= 0.3 for r, g in default),
        "io_ms=0: both up (medians)": all(
            statistics.median(column) > least
            for column, least in zip(zip(*cores, strict=True), (1, 0), strict=True)
        ),
        "textbook: busy share rises threefold": fast[2].utilization > 3 * slow[2].utilization,
    }
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    return 0 if all(claims.values()) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
