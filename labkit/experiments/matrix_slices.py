"""One large matrix product against the same product in slices, and against small ones."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.experiments.matrix_rates import side


def measure(job: Any, bench: Workbench) -> None:
    """Time A @ B of (n, n) matrices at once and in slices of A's rows, for each number in `slices`.

    Whole or sliced, the multiplications are the same 2 n^3 FLOPs; only their grouping differs.
    Then 32 separate products of (`small`, `small`) matrices, which are less work: only the rate
    can be compared. Without `n` the whole product is just more than its launch.
    """
    n = job.n or side(bench, "fp32")
    a = torch.randn(n, n, device=bench.device)  # (n, n)
    b = torch.randn(n, n, device=bench.device)
    out = torch.empty_like(a)
    flops = 2 * n**3
    bench.time(lambda: torch.mm(a, b, out=out), of="at once", flops=flops, launches=1, n=n,
               slices=1)  # fmt: skip
    for count in job.slices:
        if not 1 < count <= n:
            bench.skip(f"{count} slices", f"there are {n} rows: give 2 to {n} slices")
            continue
        rows = list(zip(a.chunk(count), out.chunk(count), strict=True))
        bench.time(lambda rows=rows: [torch.mm(part, b, out=into) for part, into in rows],
                   of="in slices", flops=flops, launches=len(rows), n=n,
                   slices=len(rows))  # fmt: skip
    pairs = [torch.randn(2, job.small, job.small, device=bench.device) for _ in range(32)]
    bench.time(lambda: [x @ y for x, y in pairs], of="32 small ones",
               flops=32 * 2 * job.small**3, launches=32, n=job.small)  # fmt: skip
