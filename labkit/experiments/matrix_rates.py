"""How many FLOPs a second a large matrix product reaches in each number format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from labkit.bench.formats import BYTES, FORMATS, using, why_not
from labkit.bench.sizes import LAUNCHES, SIDES, fitting
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Time a product of (n, n) matrices in each of `formats` (all, where None) that runs here.

    FLOPs: 2 n^3. Bytes: 3 n^2 numbers, each matrix moved once. Without `n` each format gets the
    largest that does not take long: on a card with few FP64 units that is less in FP64.
    """
    for name in usable(job.formats or FORMATS, bench):
        bench.stage(f"matrix product in {name}")
        time_product(bench, name, job.n or side(bench, name, math.inf), of=name)


def usable(names: Iterable[str], bench: Workbench) -> list[str]:
    """Return the formats that run here at a sensible speed; the others are skipped, with why."""
    kept = []
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"format {name!r}: there are {', '.join(FORMATS)}.")
        if why := why_not(name, bench.device):
            bench.skip(name, why)
        else:
            kept.append(name)
    return kept


def product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a product of two (n, n) matrices as a function, its result in memory that is there."""
    a = torch.randn(n, n, device=device).to(dtype)  # (n, n)
    b = torch.randn(n, n, device=device).to(dtype)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def time_product(bench: Workbench, name: str, n: int, *, of: str, **case: Any) -> float:
    """Time one (n, n) product in a format, write it, and return its seconds."""
    with using(name) as dtype:
        return bench.time(product(n, dtype, bench.device), of=of, flops=2 * n**3, launches=1,
                          bytes=3 * n * n * BYTES[name], n=n, **case)  # fmt: skip


def side(bench: Workbench, name: str, launches: float = LAUNCHES) -> int:
    """Return the n whose product in a format takes so long as `launches`; 1024 on a CPU."""
    with using(name) as dtype:
        return fitting(lambda n: product(n, dtype, bench.device), SIDES, bench, launches)
