"""The lesson holds here: `python maintain/benchmarks/lesson.py [PAIRS]` prints ratios by pair.

CONTRIBUTING's claims about the default pipeline come from this script; it exits with 1 where one
of them does not hold.
"""

from __future__ import annotations

import sys

import pandas as pd
from paired import all_hold

from labkit import Pipeline, machine
from labkit.results.launch import launch


def pairs_of(starved: Pipeline, fed: Pipeline, count: int) -> pd.DataFrame:
    """Measure two pipelines in turn, `count` times; return and print how each pair compares."""
    rows = []
    for _ in range(count):
        row = {}
        for name, pipeline in (("starved", starved), ("fed", fed)):
            run = launch(pipeline).wait()
            idle_ms = (1 - run.utilization) * run.step_ms
            row[f"rate_{name}"] = run.throughput
            row[f"busy_{name}"] = run.utilization
            row[f"waiting_{name}"] = run.wait_ms / idle_ms  # of the idle time of a step
        rows.append(row | {"ratio": row["rate_fed"] / row["rate_starved"]})
    pairs = pd.DataFrame(rows)
    print(pairs.round(2).to_string())
    return pairs


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(machine().line)
    print(f"default pipeline, 0 against 6 workers, {count} pairs:")
    default = pairs_of(Pipeline(), Pipeline(num_workers=6), count)
    print("io_ms=0 (the cores are the limit), 0 against 2 workers, 5 pairs:")
    decoding = pairs_of(Pipeline(io_ms=0), Pipeline(io_ms=0, num_workers=2), 5)
    print("the textbook 50 ms, 0 against 8 workers, 5 pairs:")
    slow = Pipeline(dataset="sleep", prep_ms=50)
    textbook = pairs_of(slow, slow.but(num_workers=8), 5)
    gained = default.busy_fed - default.busy_starved
    waiting = textbook[["waiting_starved", "waiting_fed"]].median()
    claims = {
        "default: 2.5x and +0.3 busy in every pair": default.ratio.min() >= 2.5
        and gained.min() >= 0.3,
        "io_ms=0: both up (medians)": decoding.ratio.median() > 1
        and (decoding.busy_fed - decoding.busy_starved).median() > 0,
        "textbook: busy share rises threefold": (
            textbook.busy_fed > 3 * textbook.busy_starved
        ).all(),
        "textbook: waiting is the idle time (medians within 10 %)": (
            (waiting - 1).abs() <= 0.10
        ).all(),
    }
    return int(not all_hold(claims))


if __name__ == "__main__":
    sys.exit(main())
