"""The range and the rounding of each number format, on real tensors of this device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit.bench.formats import use_tf32, why_not
from labkit.bench.workbench import Workbench

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
EXAMPLES = (70_000.0, 257.0, 1 / 3, 1e-5, 1e-8)


def measure(job: Any, bench: Workbench) -> None:
    """Per format: the limits that `torch.finfo` states, the limits found, numbers that break it.

    The limits are found by doubling and halving until nothing is left. "rounding" is the largest
    relative error over `count` normally distributed numbers that go to the format and back.
    """
    for name, dtype in DTYPES.items():
        info = torch.finfo(dtype)
        stated = {"max": info.max, "smallest_normal": info.smallest_normal, "eps": info.eps}
        bench.write("finfo", format=name, values=stated)
        bench.write("limits", format=name, values=limits(bench.device, dtype))
        for number in EXAMPLES:
            became = torch.tensor(number, device=bench.device).to(dtype)
            bench.write("example", format=name, number=number, values={"became": text(became)})
        bench.write(
            "rounding",
            format=name,
            values={"worst": rounding(bench.device, job.count, lambda x, d=dtype: x.to(d))},
        )
        bench.write("norm", format=name, values=norm(bench.device, dtype))  # fmt: skip
    if why := why_not("tf32", bench.device):
        bench.skip("tf32", why)
        return
    worst = rounding(bench.device, job.count, through_tensor_cores)
    bench.write("rounding", format="tf32", values={"worst": worst})


def limits(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Find the smallest number above zero and the step at 1, by halving a tensor on the device."""
    one = torch.ones((), device=device, dtype=dtype)
    smallest, step = one, one
    while (smallest / 2).item() > 0:
        smallest = smallest / 2
    while (one + step / 2).item() > 1:
        step = step / 2
    return {"smallest": smallest.item(), "eps": step.item()}


def rounding(
    device: torch.device, count: int, there: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """The largest relative error of numbers that are rounded by `there`."""
    x = torch.randn(count, device=device)
    x = x[x.abs() > 1e-3]  # below the normals of fp16 it would be more
    return ((there(x).float() - x).abs() / x.abs()).max().item()


def through_tensor_cores(x: torch.Tensor) -> torch.Tensor:
    """Round to TF32 in hardware: a product with the identity, which changes nothing else."""
    use_tf32(True)
    rows = x[: len(x) // 64 * 64].view(-1, 64)
    rounded = rows @ torch.eye(64, device=x.device)
    use_tf32(False)
    return torch.cat([rounded.flatten(), x[rounded.numel() :]])


def norm(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """The length of a vector by hand: its squares overflow long before the result would."""
    x = torch.full((4,), 300.0, device=device, dtype=dtype)
    square = x * x
    return {"square": text(square[0]), "norm": text(square.sum().sqrt()),
            "normalised": text((square / square.sum())[0])}  # fmt: skip


def text(x: torch.Tensor) -> str:
    """A number as text: JSON has neither inf nor nan."""
    return f"{x.float().item():g}"
