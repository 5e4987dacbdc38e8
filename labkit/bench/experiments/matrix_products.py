"""Small matrix products one after another against one batched product of the same work."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Time `count` products of (n, n) matrices in a Python loop and as one `torch.bmm`.

    FLOPs: 2 n^3 a product (n multiplications and n additions for each of n^2 results).
    """
    a = torch.randn(job.count, job.n, job.n, device=bench.device)  # (count, n, n)
    b = torch.randn(job.count, job.n, job.n, device=bench.device)
    flops = 2 * job.count * job.n**3
    pairs = list(zip(a.unbind(), b.unbind(), strict=True))
    bench.time(lambda: [x @ y for x, y in pairs], of="one by one", flops=flops, n=job.n)
    bench.time(lambda: torch.bmm(a, b), of="batched", flops=flops, n=job.n)
