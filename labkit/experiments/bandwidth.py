"""How fast the device copies within its own memory, from sizes in its caches to far beyond."""

from __future__ import annotations

import functools
from typing import Any

import torch

from labkit.bench.caches import cache_bytes, is_past_cache, past_cache_elements, random_array
from labkit.bench.workbench import Workbench

SMALLEST = 2**11  # float32 numbers: 8 KiB
LEAST = 2  # launches that a copy takes on a GPU, or it is the launch that is timed


def measure(job: Any, bench: Workbench) -> None:
    """Time `out.copy_(x)` for arrays from 8 KiB on, each four times the one before.

    Bytes: 2 x 4 n, n numbers read and n written (the convention of STREAM, McCalpin 1995: what a
    cache fetches before it can write is not counted). Up to `largest_mib`, or where that is None
    up to an array well past the last-level cache. The last point is the device's bandwidth. On a
    GPU arrays that are copied faster than copies can be launched are left out.
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
    left_out = 0
    for done, n in enumerate(reversed(sizes)):
        bench.stage("copying", done, len(sizes))
        x, out = source[:n], target[:n]
        copy = functools.partial(out.copy_, x)
        on_gpu = bench.device.type != "cpu"
        if on_gpu and n < largest and bench.quick_s(copy) < LEAST * bench.launch_s:
            left_out = n
            continue
        bench.time(copy, of="copy", bytes=8 * n, launches=1, array_bytes=4 * n)
    if left_out:
        size = f"arrays up to {left_out / 2**18:.3g} MiB"
        bench.skip(size, f"a copy takes less than {LEAST} launches: those would be timed")
    past = is_past_cache(8 * largest, bench.device)
    bench.write("largest", values={"array_bytes": 4 * largest, "past_cache": past})
