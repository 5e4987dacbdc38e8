"""Challenge: micro-batches of unequal size, and the gradient of the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.bench.workbench import Workbench
from labkit.course.exercises.gradients import compared

SIZES = (8, 8, 8, 5, 1)


def check(answer: Any, bench: Workbench) -> None:
    """Compare with the mean loss over all samples at once."""
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4)).double()
    x, y = torch.randn(sum(SIZES), 6).double(), torch.randint(0, 4, (sum(SIZES),))
    batches = list(zip(x.split(SIZES), y.split(SIZES), strict=True))
    whole = lambda model: nn.functional.cross_entropy(model(x), y)  # noqa: E731
    bench.write("gradients", values=compared(answer, model, batches, whole))


# -- answers: one that passes, and some that do not ------------------------------------------


def weighted(model, batches):
    """Every sample weighs the same: sum, and divide by the number of all of them."""
    from torch.nn.functional import cross_entropy

    count = sum(len(y) for _, y in batches)
    for x, y in batches:
        (cross_entropy(model(x), y, reduction="sum") / count).backward()


def by_micro_batch(model, batches):
    """The mean of means: the last sample weighs as much as eight others."""
    from torch.nn.functional import cross_entropy

    for x, y in batches:
        (cross_entropy(model(x), y) / len(batches)).backward()


def not_divided(model, batches):
    """Five times the step."""
    from torch.nn.functional import cross_entropy

    for x, y in batches:
        cross_entropy(model(x), y).backward()


def joined(model, batches):
    """The whole batch at once: what accumulation is there to avoid."""
    import torch

    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    torch.nn.functional.cross_entropy(model(x), y).backward()
