"""Challenge: an update that skips gradients which overflowed."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference

CASES = ((1024.0, None), (2.0**16, float("inf")), (64.0, float("nan")), (8.0, None))


def check(answer: Any, bench: Workbench) -> None:
    """Compare weights and scale with what the task says, step by step."""
    worst = 0.0
    for scale, spoiled in CASES:
        weights = [torch.randn(5, requires_grad=True), torch.randn(3, 2, requires_grad=True)]
        for weight in weights:
            weight.grad = torch.randn_like(weight) * scale
        if spoiled is not None:
            weights[1].grad[2, 1] = spoiled  # one of eleven, in the last tensor
        step = 0.1 / scale if spoiled is None else 0.0
        right = [w.detach() - step * w.grad.nan_to_num(0, 0, 0) for w in weights]
        next_scale = answer(weights, scale, 0.1)
        expected = scale if spoiled is None else scale / 2
        worst = max(worst, abs(float(next_scale) - expected) / expected)
        pairs = zip(weights, right, strict=True)
        worst = max([worst, *(difference(w.detach(), r) for w, r in pairs)])
    bench.write("update", values={"error": worst})


# -- answers: one that passes, and some that do not ------------------------------------------


def careful(weights, scale, lr):
    """Look at all gradients before any weight is touched."""
    import torch

    if not all(torch.isfinite(weight.grad).all() for weight in weights):
        return scale / 2
    with torch.no_grad():
        for weight in weights:
            weight -= lr * weight.grad / scale
    return scale


def mended(weights, scale, lr):
    """A gradient with its infinities replaced is not the gradient."""
    import torch

    broken = not all(torch.isfinite(weight.grad).all() for weight in weights)
    with torch.no_grad():
        for weight in weights:
            weight -= lr * weight.grad.nan_to_num(0, 0, 0) / scale
    return scale / 2 if broken else scale


def one_by_one(weights, scale, lr):
    """Skips the broken tensor only: half an update."""
    import torch

    with torch.no_grad():
        for weight in weights:
            if not torch.isfinite(weight.grad).all():
                return scale / 2
            weight -= lr * weight.grad / scale
    return scale


def never(weights, scale, lr):
    """An update that never happens never breaks."""
    return scale / 2
