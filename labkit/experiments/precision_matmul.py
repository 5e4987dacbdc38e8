"""One matrix product in each number format: how fast, how many bytes, how exact."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.formats import BYTES, FORMATS, using
from labkit.bench.in_turn import in_turn
from labkit.bench.workbench import Workbench
from labkit.experiments.matrix_rates import side, usable

USUAL = ("fp32", "tf32", "fp16", "bf16")
ROWS = 64  # of the product, on which its error is measured


def measure(job: Any, bench: Workbench) -> None:
    """Time an (n, n) product in each format that this device has, and its error against FP64.

    FLOPs: 2 n^3. Bytes: two matrices read, one written, 3 n^2 numbers. The error is the norm of
    the difference over the norm of the FP64 product, before the inputs were rounded. Without `n`
    the product is just more than its launch in the fastest of the formats.
    """
    formats = usable(USUAL, bench)
    n = job.n or max(side(bench, name) for name in formats)
    exact = torch.randn(2, n, n, dtype=torch.float64)
    ways = {}
    for name in formats:
        a, b = exact.to(bench.device, FORMATS[name][0])
        ways[name] = lambda a=a, b=b: a @ b
    bench.stage("matrix products: " + ", ".join(ways))
    for name, seconds in in_turn(ways, bench, setting=using).items():
        size = 3 * n * n * BYTES[name]
        bench.write("matmul", seconds=seconds, flops=2 * n**3, bytes=size, precision=name)
    for name, work in ways.items():
        with using(name):
            relative = relative_error(work(), exact)
        bench.write("error", precision=name, values={"relative": relative})


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error of the first rows of `result`, taken together."""
    truth = exact[0, :ROWS] @ exact[1]
    return ((result[:ROWS].double().cpu() - truth).norm() / truth.norm()).item()
