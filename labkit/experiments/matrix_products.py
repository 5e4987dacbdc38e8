"""Matrix products: many small ones against one batch, in slices, odd sizes and every format.

FLOPs: 2 n^3 a product of (n, n) matrices. Bytes: 3 n^2 numbers, each matrix moved once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, formats = Later("torch"), Later("labkit.bench.formats")

ALL = ("fp64", "fp32", "tf32", "fp16", "bf16")
USUAL = ALL[1:]
SIDE = {"kind": "int", "low": 1, "high": 1 << 16, "auto": "chosen for the device"}
OFFSETS = (-64, -32, -8, -1, 0, 1, 8, 32, 64)
MULTIPLES = (64, 32, 8)
SMALL_COUNT = 32  # of the small products beside the slices
ROWS = 64  # of a product, on which its error is measured


@experiment(
    "a thousand small products one after another against one batched product",
    n=knob(64, "rows of a matrix", low=1, high=1 << 16),
    count=knob(1000, "matrices", low=1, high=1 << 20),
)
def matrix_products(job: Any, bench: Any) -> None:
    """Time `count` products of (n, n) matrices in a Python loop and as one `torch.bmm`."""
    a, b = torch.randn(2, job.count, job.n, job.n, device=bench.device)  # (count, n, n) each
    flops = 2 * job.count * job.n**3
    pairs = list(zip(a.unbind(), b.unbind(), strict=True))
    bench.time(lambda: [x @ y for x, y in pairs], of="one by one", flops=flops,
               launches=job.count, n=job.n)  # fmt: skip
    bench.time(lambda: torch.bmm(a, b), of="batched", flops=flops, launches=1, n=job.n)


@experiment(
    "the rate of a large matrix product in each number format",
    n=knob(None, "rows of a matrix", **SIDE),
    formats=knob(None, "number formats", kind="str", choices=ALL, each=True, auto="all"),
)
def matrix_rates(job: Any, bench: Any) -> None:
    """Time a product of (n, n) matrices in each of `formats`, without `n` the largest sensible."""
    for name in bench.usable(job.formats or ALL):
        bench.stage(f"matrix product in {name}")
        time_product(bench, name, job.n or side(bench, name, largest=True), of=name)


@experiment(
    "one matrix product at once, the same in slices, and 32 small ones",
    n=knob(None, "rows of a matrix", **SIDE),
    slices=knob([32, 1024], "slices of the rows", low=1, high=1 << 16),
    small=knob(32, "rows of a small matrix", low=1, high=1 << 12),
)
def matrix_slices(job: Any, bench: Any) -> None:
    """Time A @ B of (n, n) matrices at once and in slices of A's rows; and small products."""
    n = job.n or side(bench, "fp32")
    a, b = torch.randn(2, n, n, device=bench.device)  # (n, n) each
    out, mm = torch.empty_like(a), torch.mm
    flops = 2 * n**3
    for count in (1, *job.slices):
        if not 1 <= count <= n:
            bench.skip(f"{count} slices", f"there are {n} rows: give 2 to {n} slices")
            continue
        rows = list(zip(a.chunk(count), out.chunk(count), strict=True))
        of = "in slices" if count > 1 else "at once"
        bench.time(lambda rows=rows: [mm(part, b, out=into) for part, into in rows], of=of,
                   flops=flops, launches=len(rows), n=n, slices=len(rows))  # fmt: skip
    small = job.small
    pairs = [torch.randn(2, small, small, device=bench.device) for _ in range(SMALL_COUNT)]
    bench.time(lambda: [x @ y for x, y in pairs], of=f"{SMALL_COUNT} small ones",
               flops=SMALL_COUNT * 2 * small**3, launches=SMALL_COUNT, n=small)  # fmt: skip


@experiment(
    "matrix products of sizes around a round number",
    around=knob(None, "rows in the middle of the sizes", **(SIDE | {"low": 65})),
    formats=knob(["fp32", "fp16", "bf16"], "number formats", choices=ALL),
)
def matrix_sizes(job: Any, bench: Any) -> None:
    """Time (n, n) products for n around `around`; `multiple` is what divides n, of MULTIPLES."""
    names = bench.usable(job.formats)
    around = job.around or max((side(bench, name) for name in names), default=None)
    for name in names:
        for done, offset in enumerate(OFFSETS):
            bench.stage(f"sizes in {name}", done, len(OFFSETS))
            n = around + offset
            multiple = next((m for m in MULTIPLES if n % m == 0), 1)
            time_product(bench, name, n, of=name, multiple=multiple)


@experiment("one matrix product in each number format", n=knob(None, "rows of a matrix", **SIDE))
def precision_matmul(job: Any, bench: Any) -> None:
    """Time an (n, n) product in each format that this device has, and its error against FP64."""
    names, ways = bench.usable(USUAL), {}
    n = job.n or max(side(bench, name) for name in names)
    exact = torch.randn(2, n, n, dtype=torch.float64)
    for name in names:
        a, b = exact.to(bench.device, formats.FORMATS[name][0])
        ways[name] = lambda a=a, b=b: a @ b
    bench.stage("matrix products: " + ", ".join(ways))
    for name, seconds in bench.in_turn(ways, setting=formats.using).items():
        size = 3 * n * n * formats.BYTES[name]
        bench.write("matmul", seconds=seconds, flops=2 * n**3, bytes=size, precision=name)
    for name, work in ways.items():
        with formats.using(name):
            values = {"relative": relative_error(work(), exact)}
        bench.write("error", precision=name, values=values)


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative error of the first rows of `result`."""
    truth = exact[0, :ROWS] @ exact[1]
    return ((result[:ROWS].double().cpu() - truth).norm() / truth.norm()).item()


def product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a product of two (n, n) matrices as a function, its result in memory that is there."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))  # (n, n)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def time_product(bench: Any, name: str, n: int, *, of: str, **case: Any) -> None:
    """Time one (n, n) product in a format and write it."""
    with formats.using(name) as dtype:
        bench.time(product(n, dtype, bench.device), of=of, flops=2 * n**3, launches=1,
                   bytes=3 * n * n * formats.BYTES[name], n=n, **case)  # fmt: skip


def side(bench: Any, name: str, largest: bool = False) -> int:
    """Return the n whose product is more than its launch, or the largest that is not too long."""
    launches = {"launches": math.inf} if largest else {}
    with formats.using(name) as dtype:
        return bench.fitting(lambda n: product(n, dtype, bench.device), **launches)
