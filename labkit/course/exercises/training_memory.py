"""Challenge: what the weights, gradients and AdamW's state of a model take."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.bench.workbench import Workbench


def check(answer: Any, bench: Workbench) -> None:
    """Compare with the bytes of the tensors that are there after a step."""
    errors = []
    for dtype, frozen in ((torch.float32, 0), (torch.bfloat16, 0), (torch.float32, 1)):
        layers = [nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 30)]
        model = nn.Sequential(*layers).to(dtype)
        layers[0].requires_grad_(not frozen)
        said = answer(model)
        right = held_after_a_step(model, dtype)
        errors.append(abs(said - right) / right)
    bench.write("memory", values={"error": max(errors)})


def held_after_a_step(model: nn.Module, dtype: torch.dtype) -> int:
    """Train one step and add up what stays, in bytes; AdamW's step counters are left out."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(torch.randn(4, 64, dtype=dtype)).sum().backward()
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
    tensors = [*model.parameters(), *(p.grad for p in trained), *states]
    return sum(tensor.nbytes for tensor in tensors)


# -- answers: one that passes, and some that do not ------------------------------------------


def by_parameter(model):
    """Weight, gradient and two moments, each in the weight's own type; a frozen one is alone."""
    return sum(p.nbytes * (4 if p.requires_grad else 1) for p in model.parameters())


def weights_and_gradients(model):
    """AdamW keeps two moments for every weight."""
    return sum(2 * p.nbytes for p in model.parameters())


def sixteen(model):
    """Sixteen bytes a parameter is right for FP32 only, and where all are trained."""
    return sum(16 * p.numel() for p in model.parameters())


def constant(model):
    """The number for the first model."""
    return 16 * (64 * 200 + 200 + 200 * 30 + 30)
