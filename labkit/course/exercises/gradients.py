"""Checking that accumulated gradients are those of the whole batch, and how much was held."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.course.exercises.counting import difference


def compared(answer: Any, model: nn.Module, batches: list, right_loss: Any) -> dict[str, float]:
    """Return the `error` of the gradients the answer leaves, and the `largest` batch it ran."""
    model.zero_grad()
    right_loss(model).backward()
    right = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(lambda _model, inputs: sizes.append(len(inputs[0])))
    answer(model, [tuple(t.clone() for t in batch) for batch in batches])
    hook.remove()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    errors = [difference(mine, theirs) for mine, theirs in zip(found, right, strict=True)]
    return {"error": max(errors), "largest": max(sizes, default=0)}
