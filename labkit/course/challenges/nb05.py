"""The challenges of notebook 05, mixed precision."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, EXACT, difference
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


def scaled_step(weights: list[Tensor], scale: float, lr: float) -> float:
    """Update the weights if all gradients are finite; return the next scale."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if not all(torch.isfinite(gradient).all() for gradient in gradients):
        return scale / 2
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= lr * gradient / scale
    return scale


@code(
    "05-skip",
    hints=("Look at all of the gradients before the first weight is touched.",),
    goals=(EXACT,),
    example=scaled_step,
)
def skip(answer: Answer) -> Numbers:
    """A step that is skipped.

    Write a function of (weights, scale, lr). The .grad of every weight is the gradient times scale.
    If any number in any of them is infinite or NaN, leave every weight as it is and return scale /
    2. Otherwise subtract lr times the gradient from each weight, in place, and return scale.
    """
    errors = []
    for scale, spoiled in ((1024.0, None), (2.0**16, "inf"), (64.0, "nan"), (8.0, None)):
        gradients = [torch.randn(5) * scale, torch.randn(3, 2) * scale]
        if spoiled:
            gradients[1][2, 1] = float(spoiled)  # one of eleven numbers, in the last tensor
        weights = [torch.randn_like(gradient, requires_grad=True) for gradient in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        right = copy.deepcopy(weights)
        right_scale = scaled_step(right, scale, 0.1)
        errors.append(abs(float(answer(weights, scale, 0.1)) - right_scale) / scale)
        for weight, expected in zip(weights, right, strict=True):
            errors.append(difference(weight.detach(), expected.detach()))
    return {ERROR: max(errors)}
