"""The challenges of notebook 05, mixed precision."""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, difference
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal

SMALL = 1e-4  # its square is below what FP16 can hold


def with_loss_scale(loss_of: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Return the gradient of a loss that is enlarged for the backward pass."""
    scale = 2.0**14
    loss = loss_of(weights).float() * scale
    return torch.autograd.grad(loss, weights)[0].float() / scale  # in FP32 small numbers fit


@code(
    "05-small-gradients",
    hints=(
        "Gradients are proportional to the loss: what if it were 10,000 times as large?",
        "loss_of(weights).float() * scale; and where does the division fit 1e-8?",
    ),
    goals=(Goal(ERROR, at_most=0.02),),
    example=with_loss_scale,
)
def small_gradients(answer: Answer) -> Numbers:
    """Gradients that FP16 cannot hold.

    loss_of(weights) makes a loss in FP16 from FP16 weights, but the gradients, about 1e-8, become
    zero on their way. Write a function of (loss_of, weights) that returns the gradient as an FP32
    tensor, to 2 %. The loss stays in FP16.
    """
    factors = ((torch.rand(400) + 0.5) * SMALL).half()

    def loss_of(weights: Tensor) -> Tensor:
        if weights.dtype != torch.float16:
            raise Refused("The loss is made in FP16: leave the weights as they are.")
        return (weights * factors).sum() * SMALL

    weights = torch.randn(400).half().requires_grad_()
    right = factors.double() * torch.tensor(SMALL).half().double()
    return {ERROR: difference(answer(loss_of, weights), right)}
