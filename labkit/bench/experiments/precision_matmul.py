"""One matrix product in each number format: how fast, how many bytes, how exact."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from labkit.bench.in_turn import in_turn
from labkit.bench.loop import use_tf32
from labkit.bench.settle import precision_lacks
from labkit.bench.workbench import Workbench

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
PROBE_N = 256
ROWS = 64  # of the product, on which its error is measured
PATIENCE_S = 1.0  # a product that takes longer is not worth waiting for


def measure(job: Any, bench: Workbench) -> None:
    """Time an (n, n) product in each format that this device has, and its error against FP64.

    FLOPs: 2 n^3. Bytes: two matrices read, one written, 3 n^2 numbers. The error is the norm of
    the difference over the norm of the FP64 product, before the inputs were rounded.
    """
    n = job.n
    exact = torch.randn(2, n, n, dtype=torch.float64)
    ways = {}
    for name, dtype in DTYPES.items():
        if why := lacks(name, dtype, n, bench.device):
            bench.skip(name, why)
        else:
            ways[name] = product(name, *exact.to(bench.device, dtype))
    bench.stage("matrix products: " + ", ".join(ways))
    for name, seconds in in_turn(ways, bench).items():
        size = 3 * n * n * DTYPES[name].itemsize
        bench.write("matmul", seconds=seconds, flops=2 * n**3, bytes=size, precision=name)
    for name, work in ways.items():
        bench.write("error", precision=name, values={"relative": relative_error(work(), exact)})
    use_tf32(False)


def product(name: str, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The product of two matrices as a function, in TF32 where that is the name."""

    def work() -> torch.Tensor:
        use_tf32(name == "tf32")  # a few µs
        return a @ b

    return work if a.is_cuda else lambda: a @ b


def lacks(name: str, dtype: torch.dtype, n: int, device: torch.device) -> str | None:
    """Why `name` is not measured here, or None; a slow format is probed on a small product."""
    if name in ("tf32", "bf16") or device.type != "cpu":
        return precision_lacks(name, device)
    a = torch.randn(PROBE_N, PROBE_N).to(dtype)
    a @ a
    start = time.perf_counter()
    a @ a
    seconds = (time.perf_counter() - start) * (n / PROBE_N) ** 3
    if seconds < PATIENCE_S:
        return None
    return f"a product of {n} would take about {seconds:.0f} s here (tried at {PROBE_N})"


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error of the first rows of `result`, taken together."""
    truth = exact[0, :ROWS] @ exact[1]
    return ((result[:ROWS].double().cpu() - truth).norm() / truth.norm()).item()
