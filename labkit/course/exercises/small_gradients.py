"""Challenge: gradients too small for FP16."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused

SMALL = 1e-4  # twice in a row it is below what FP16 can hold


def check(answer: Any, bench: Workbench) -> None:
    """Compare with the gradient in double precision; the loss itself has to be made in FP16."""
    worst = 0.0
    for seed in range(4):
        factors = (torch.rand(100, generator=torch.Generator().manual_seed(seed)) + 0.5) * SMALL
        factors = factors.half()

        def loss_of(weights: torch.Tensor, factors: torch.Tensor = factors) -> torch.Tensor:
            if weights.dtype != torch.float16:
                raise Refused("The loss is made in FP16: leave the weights as they are.")
            return (weights * factors).sum() * SMALL

        weights = torch.randn(100).half().requires_grad_()
        right = factors.double() * torch.tensor(SMALL).half().double()
        worst = max(worst, difference(answer(loss_of, weights), right))
    bench.write("gradients", values={"error": worst})


# -- answers: one that passes, and some that do not ------------------------------------------


def plain(loss_of, weights):
    """Every gradient becomes zero."""
    import torch

    return torch.autograd.grad(loss_of(weights), weights)[0].float()


def scaled(loss_of, weights, scale=2.0**14):
    """The loss times a power of two; divided again in FP32, where small numbers fit."""
    import torch

    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0].float() / scale


def unscaled_in_fp16(loss_of, weights, scale=2.0**14):
    """Divided again in FP16: and gone again."""
    import torch

    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0] / scale


def scaled_too_far(loss_of, weights):
    """2^20 is more than FP16 can hold."""
    return scaled(loss_of, weights, 2.0**20)


def in_fp32(loss_of, weights):
    """Another loss: one in FP32."""
    import torch

    weights = weights.detach().float().requires_grad_()
    return torch.autograd.grad(loss_of(weights), weights)[0]
