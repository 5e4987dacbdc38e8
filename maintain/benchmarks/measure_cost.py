"""What `lk.measure` adds to `torch.utils.benchmark.Timer`, on the same operation in one process.

    python maintain/benchmarks/measure_cost.py

Both time an operation in turn, eleven times. Printed is, for each operation, the median of the
ratios of the two medians (labkit's over Timer's), with its 95 % interval. Target: within 2 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

import labkit as lk

PAIRS = 11
SECONDS = 0.1  # of timing, each
HERE = str(Path(__file__).parent)


def both(bench, operation, n):
    """Time `operation` with `bench.time` and with a Timer, in turn."""
    sys.path.insert(0, HERE)
    from paired import median_95

    left = torch.randn(n, n, device=bench.device)
    right = torch.randn(n, n, device=bench.device)
    work = getattr(torch, operation)
    names = {"work": work, "left": left, "right": right}
    timer = Timer("work(left, right)", globals=names, num_threads=torch.get_num_threads())
    ratios = []
    for pair in range(PAIRS):
        ours = bench.time(lambda: work(left, right), seconds=SECONDS, pair=pair)
        ratios.append(ours / timer.blocked_autorange(min_run_time=SECONDS).median)
    ratio, low, high = median_95(ratios)
    return {"ratio": round(ratio, 3), "low": round(low, 3), "high": round(high, 3)}


if __name__ == "__main__":
    found = lk.measure(both, operation=["matmul", "add"], n=[64, 256, 1024])
    rows = found.rows.query("pair == 0")
    print(rows[["operation", "n", "ms", "ratio", "low", "high"]].to_string(index=False))
    print(lk.machine())
