"""How fast the device copies within its own memory, from sizes in its caches to far beyond."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.caches import cache_bytes, is_past_cache, past_cache_elements, random_array
from labkit.bench.workbench import Workbench

SMALLEST = 2**11  # float32 numbers: 8 KiB


def measure(job: Any, bench: Workbench) -> None:
    """Time `out.copy_(x)` for arrays from 8 KiB on, each four times the one before.

    Bytes: 2 x 4 n, n numbers read and n written (the convention of STREAM, McCalpin 1995: what a
    cache fetches before it can write is not counted). Up to `largest_mib`, or where that is None
    up to an array well past the last-level cache. The last point is the device's bandwidth.
    """
    largest = past_cache_elements(bench.device)
    if job.largest_mib is not None:
        largest = max(SMALLEST, int(job.largest_mib * 2**20) // 4)
    source = random_array(largest, bench.device)
    target = torch.empty_like(source).fill_(1.0)
    sizes = [largest]
    while sizes[-1] // 4 >= SMALLEST:
        sizes.append(sizes[-1] // 4)
    bench.write("caches", values=cache_bytes(bench.device))
    for done, n in enumerate(reversed(sizes)):
        bench.stage("copying", done, len(sizes))
        x, out = source[:n], target[:n]
        bench.time(lambda x=x, out=out: out.copy_(x), of="copy", bytes=8 * n, array_bytes=4 * n)
    past = is_past_cache(8 * largest, bench.device)
    bench.write("largest", values={"array_bytes": 4 * largest, "past_cache": past})
