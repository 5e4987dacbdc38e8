"""Matrix products of sizes around a round number: do multiples of 8, 32 and 64 matter here?"""

from __future__ import annotations

from typing import Any

from labkit.bench.workbench import Workbench
from labkit.experiments.matrix_rates import side, time_product, usable

OFFSETS = (-64, -32, -8, -1, 0, 1, 8, 32, 64)
MULTIPLES = (64, 32, 8)


def measure(job: Any, bench: Workbench) -> None:
    """Time (n, n) products for n around `around`, in each of `formats`.

    FLOPs: 2 n^3, so a rate does not fall merely because n is larger. `multiple` in the case is
    the largest of 64, 32 and 8 that divides n, or 1. Without `around` it is the smallest of
    `labkit.bench.sizes` that is more than its launch in every format.
    """
    formats = usable(job.formats, bench)
    around = job.around or max((side(bench, name) for name in formats), default=None)
    for name in formats:
        for done, offset in enumerate(OFFSETS):
            bench.stage(f"sizes in {name}", done, len(OFFSETS))
            n = around + offset
            multiple = next((m for m in MULTIPLES if n % m == 0), 1)
            time_product(bench, name, n, of=name, multiple=multiple)
