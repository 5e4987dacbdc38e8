"""How many FLOPs a second a large matrix product reaches in each number format."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.formats import BYTES, FORMATS, using, why_not
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Time a product of (n, n) matrices in each of `formats` (all, where None) that runs here.

    FLOPs: 2 n^3. Bytes: 3 n^2 numbers, each matrix moved once. A format without a fast path is
    probed and left out with the ratio that the probe measured.
    """
    n = job.n or default_size(bench.device)
    for name in job.formats or FORMATS:
        if name not in FORMATS:
            raise ValueError(f"format {name!r}: there are {', '.join(FORMATS)}.")
        bench.stage(f"matrix product in {name}")
        if why := why_not(name, bench.device):
            bench.skip(name, why)
            continue
        time_product(bench, name, n, of=name)


def time_product(bench: Workbench, name: str, n: int, *, of: str, **case: Any) -> float:
    """Time one (n, n) product in a format, write it, and return its seconds."""
    with using(name) as dtype:
        a = torch.randn(n, n, device=bench.device).to(dtype)  # (n, n)
        b = torch.randn(n, n, device=bench.device).to(dtype)
        out = torch.empty_like(a)
        return bench.time(lambda: torch.mm(a, b, out=out), of=of, flops=2 * n**3,
                          bytes=3 * n * n * BYTES[name], n=n, **case)  # fmt: skip


def default_size(device: torch.device) -> int:
    """A size that fills the device: 1024 on a CPU, 8192 on a GPU."""
    return 1024 if device.type == "cpu" else 8192
