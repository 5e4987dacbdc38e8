"""Gradients too small for FP16: made to vanish, and kept by a scaler.

The task is the everyday one: a field over a picture (a displacement, in metres: millimetres) and
a loss that is a mean over all its numbers. d loss / d output = 2 error / count is then about
2 * 1e-3 / 2e5 = 1e-8, and FP16 has nothing between 0 and 6e-8.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch import nn

from labkit.bench.formats import why_not
from labkit.bench.workbench import Workbench

FP16, BF16 = torch.float16, torch.bfloat16
TOO_HIGH = 2.0**34  # a loss scale that makes the gradients overflow

# (name, dtype of autocast or None, GradScaler's settings or None, a fixed factor instead)
CASES = (
    ("fp32", None, None, 1.0),
    ("fp16, no scaler", FP16, None, 1.0),
    ("fp16, scaler", FP16, {}, 1.0),
    ("bf16, no scaler", BF16, None, 1.0),
    ("fp16, scaler too high", FP16, {"init_scale": TOO_HIGH, "growth_interval": 10}, 1.0),
    ("fp16, fixed factor", FP16, None, TOO_HIGH),
)


def measure(job: Any, bench: Workbench) -> None:
    """Train the same small network in each case and write what its gradients came to.

    Values: `loss` per step; `zeros`, the share of the gradient at the output that is exactly 0
    in the first step; `scale` and `skipped` per step, where there is a scaler. Of the FP32 case
    also `exponents`, the histogram of log2 of that gradient.
    """
    x, target = field(job.px, bench.device)
    for name, dtype, scaling, factor in CASES:
        why = why_not("bf16", bench.device) if dtype is BF16 else None
        if why:
            bench.skip(name, why)
            continue
        bench.stage(f"training: {name}")
        values = train(x, target, dtype, scaling, factor, job.steps)
        bench.write("training", case=name, values=values)


def field(px: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth displacement over a px x px picture, in metres, of at most 2 mm.

    Returns:
        The features of every pixel, (px^2, 16): waves over the picture. The target, (px^2, 3).
    """
    generator = torch.Generator().manual_seed(0)
    place = torch.linspace(0, 1, px)
    grid = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).view(-1, 2)
    waves = torch.randn(2, 16, generator=generator) * 4
    features = torch.sin(grid @ waves)  # (px^2, 16)
    mix = torch.randn(16, 3, generator=generator)
    target = 2e-3 * torch.tanh(features @ mix)  # (px^2, 3)
    return features.to(device), target.to(device)


def train(
    x: torch.Tensor,
    target: torch.Tensor,
    dtype: torch.dtype | None,
    scaling: dict[str, float] | None,
    factor: float,
    steps: int,
) -> dict[str, Any]:
    """Train one network from the same start; return what is known of every step."""
    torch.manual_seed(0)
    device = x.device.type
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3)).to(x.device)
    nn.init.zeros_(model[2].weight)  # as residual branches often start: from no output
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=scaling is not None, **(scaling or {}))
    cast = torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()
    known: dict[str, Any] = {"loss": [], "scale": [], "skipped": []}
    started = time.perf_counter()
    for step in range(steps):
        with cast:
            out = model(x)  # (px^2, 3), in 16 bits under autocast
            loss = nn.functional.mse_loss(out.float(), target)
        if step == 0:
            out.register_hook(lambda grad: known.update(gradient(grad)))
        scale = scaler.get_scale()
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)  # not where a gradient is infinite or NaN
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        known["loss"].append(loss.item())
        if scaling is not None:
            known["scale"].append(scale)
            known["skipped"].append(scaler.get_scale() < scale)
    return known | {"seconds": time.perf_counter() - started}


def gradient(grad: torch.Tensor) -> dict[str, Any]:
    """What the gradient at the output is made of: its zeros, and where its other values lie."""
    size = grad.detach().float().abs()
    present = size[(size > 0) & size.isfinite()]
    exponents, counts = present.log2().floor().int().unique(return_counts=True)
    return {
        "dtype": str(grad.dtype).removeprefix("torch."),
        "zeros": (size == 0).float().mean().item(),
        "infinite": (~size.isfinite()).float().mean().item(),
        "exponents": [exponents.tolist(), (counts / size.numel()).tolist()],
    }
