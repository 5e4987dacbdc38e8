"""The tuner against every point of a grid: CONTRIBUTING's row of the tuner.

    python maintain/benchmarks/tuning.py [--only remote] [--rows rows.json]

The best of a noisy grid flatters itself, so the contenders are measured again in turn: five rounds
say which of the grid's winners is the best, five more are compared. The exit code is 1 where a
target is missed. The column of loadtune 0.3 (PyPI), which ran on the same dataset and model, was
measured once.

Measured on a 2-core AMD EPYC VM, one grid of 25 settings and one tuning for each workload:

| workload | of the grid's best | of the grid's time | runs | loadtune, of the grid's best |
|---|---|---|---|---|
| light decode | 102.1 % | 16 % | 3 | 98 % |
| heavy decode | 96.9 % | 10 % | 3 | 83 % |
| arrays | 100.0 % | 4 % | 1 | 96 % |
| remote waits | 100.3 % | 12 % | 3 | 49 % |
| textbook sleep | 100.0 % | 16 % | 4 | 54 % |
| stalls with a heavy tail | 105.1 % | 17 % | 3 | 53 % |
| median | 100.2 % | 14 % | 3 | |

Above 100 % is the noise of this machine, whose speed changes by a third within seconds. Twelve
loops of other origin showed what was missing: a range is widened by the noise of a run, a queue of
one batch a worker is never as fast as predicted, and workers are not taken for what may be noise.
(Six of the twelve, measured once before the last two of these: 93.9 % in the median, worst 86.0
%.) Then six fresh loops were written down and measured once, on a 2-core Xeon VM with neighbours
that took an eighth of its cores. They have been seen since, and are in the repository's history
only: PNGs in a tar file, tokens in a mapped file, images moved by torch, two services behind each
other, shards that open slowly, sound files.

| fresh loop | of the grid's best | of the grid's time | runs | loadtune, of the grid's best |
|---|---|---|---|---|
| tar | 100.0 % | 18 % | 5 | 100 % |
| mapped tokens | 100.0 % | 5 % | 1 | 100 % |
| moved images | 100.0 % | 17 % | 4 | 100 % |
| two services | 97.3 % | 9 % | 4 | 39 % |
| shards | 100.0 % | 12 % | 3 | it takes no stream |
| sound | 100.0 % | 12 % | 3 | 100 % |
| median | 100.0 % | 12 % | 3 | |

100.0 % is the grid's best setting itself. Mapped tokens were measured twice: the first time the
neighbours left runs without a step; the tuner chose the same.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from typing import Any

from paired import all_hold, in_turn, rows_of

from labkit import Pipeline
from labkit.tuning.search import Search
from labkit.tuning.set_up import tuner
from labkit.tuning.trial import of_loader
from labkit.tuning.trial_bench import TrialBench

WORKLOADS = {
    "light decode": Pipeline(io_ms=0, image_px=32, augment=0, batch_size=32),
    "heavy decode": Pipeline(io_ms=0, image_px=96, augment=2, batch_size=8),
    "arrays": Pipeline(dataset="array", image_px=64, batch_size=64),
    "remote": Pipeline(io_ms=2.5),
    "textbook": Pipeline(dataset="sleep", prep_ms=50),
    "stalls": Pipeline(dataset="array", io_ms=0.5, stall_ms=150, stall_every=16),
}
SECONDS = 1.2  # of each run
GRID = [(0, None), *itertools.product((1, 2, 3, 4, 6, 8), (1, 2, 4, 8))]  # workers, prefetch
ROUNDS = 10  # of second measurements: half to find the grid's best, half to compare
WINNERS = 3  # of the grid
TRIES = 9  # of a run that did no step


def samples_a_second(bench: TrialBench, knobs: dict[str, Any], expected: float | None) -> float:
    """Measure knobs; once more where the machine's neighbours let a run do no step."""
    tries = (bench.measure(knobs, expected).rate for _ in range(TRIES))
    return next(filter(None, tries), 0.0)


def named(knobs: dict[str, Any]) -> str:
    """Name the settings that the grid is of."""
    return f"{knobs['num_workers']} workers, prefetch {knobs['prefetch_factor']}"


def measure_grid(job: Search) -> tuple[list[dict[str, Any]], float, float]:
    """Measure the settings of GRID once; return them, fastest first, its rate, and the seconds."""
    begun = time.monotonic()
    found: list[tuple[float, dict[str, Any]]] = []
    for workers, prefetch in GRID:
        asked = {"num_workers": workers, "prefetch_factor": prefetch}
        knobs = of_loader(job.found.start | asked)
        fastest = max((rate for rate, _ in found), default=None)
        found.append((samples_a_second(job.bench, knobs, fastest), knobs))
    found.sort(key=lambda pair: pair[0], reverse=True)
    # runs that were too short were made again: not the grid's time
    seconds = (time.monotonic() - begun) * len(found) / job.bench.count
    return [knobs for _, knobs in found], found[0][0], seconds


def against_grid(name: str) -> dict[str, Any]:
    """Measure the grid, tune once, and measure the winners of both again in turn."""
    make_job = functools.partial(tuner, WORKLOADS[name], seconds=SECONDS, max_workers=8)
    settings, rate, grid_seconds = measure_grid(make_job())
    begun = time.monotonic()
    job = make_job()
    best = job.run().best
    of_its_time = (time.monotonic() - begun) / grid_seconds
    runs = job.bench.count
    winners = list(map(named, settings[:WINNERS]))
    chosen = named(best)
    ways = {
        named(knobs): functools.partial(
            samples_a_second, job.bench, of_loader(knobs | {"persistent_workers": False}), rate
        )
        for knobs in (*settings[:WINNERS], best)
    }
    again = in_turn(ways, ROUNDS)
    grid_best = again[: ROUNDS // 2][winners].median().idxmax()
    later = again[ROUNDS // 2 :].median()
    return {
        "chosen": chosen,
        "of_grid_best": float(later[chosen] / later[grid_best]),
        "of_its_time": of_its_time,
        "runs": runs,
    }


def main() -> int:
    table = rows_of(__doc__, WORKLOADS, against_grid)
    print(table.to_string(float_format="{:.1%}".format))
    reached = table["of_grid_best"]
    took = table["of_its_time"].median()
    claims = {
        f"median share of the grid's best {reached.median():.1%} >= 97%": reached.median() >= 0.97,
        f"never under 92%: worst {reached.min():.1%}": reached.min() >= 0.92,
        f"median share of its time {took:.0%} <= 15%": took <= 0.15,
    }
    return int(not all_hold(claims))


if __name__ == "__main__":
    sys.exit(main())
