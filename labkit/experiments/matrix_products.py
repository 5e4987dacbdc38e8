"""Small matrix products one after another against one batched product of the same work."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Time `count` products of (n, n) matrices in a Python loop and as one `torch.bmm`.

    FLOPs: 2 n^3 a product (n multiplications and n additions for each of n^2 results). On a GPU
    the loop is nothing but launches; so is one call for small matrices (see its launch_share).
    """
    a = torch.randn(job.count, job.n, job.n, device=bench.device)  # (count, n, n)
    b = torch.randn(job.count, job.n, job.n, device=bench.device)
    flops = 2 * job.count * job.n**3
    pairs = list(zip(a.unbind(), b.unbind(), strict=True))
    bench.time(lambda: [x @ y for x, y in pairs], of="one by one", flops=flops,
               launches=job.count, n=job.n)  # fmt: skip
    bench.time(lambda: torch.bmm(a, b), of="batched", flops=flops, launches=1, n=job.n)
