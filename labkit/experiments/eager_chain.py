"""A chain of elementwise operations, one after another: time follows the bytes, not the FLOPs."""

from __future__ import annotations

from typing import Any

from labkit.bench.caches import past_cache_elements, random_array
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Time 1, 2, 4 ... multiplications in turn on one array, for each number in `lengths`.

    Bytes: 8 a float32 number and operation, one read and one write, since each operation is a pass
    of its own over memory. In place, so that no time goes into new memory. (FLOPs: 1 a number and
    operation, an eighth of the bytes.)
    """
    n = past_cache_elements(bench.device) if job.mib is None else job.mib * 2**20 // 4
    x = random_array(n, bench.device)

    def chain(length: int) -> None:
        for step in range(length):
            x.mul_(1.0001 if step % 2 else 0.9999)  # neither to zero nor to infinity

    for length in job.lengths:
        bench.time(lambda length=length: chain(length), of="in turn", bytes=8 * length * n,
                   launches=length, operations=length)  # fmt: skip
