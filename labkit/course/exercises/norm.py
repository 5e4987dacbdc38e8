"""Challenge: a normalisation that does not mind how the batch is cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused

CHANNELS = 8


def check(answer: Any, bench: Workbench) -> None:
    """Compare the gradients of micro-batches with the whole batch's; see that it normalises."""
    x, y = torch.randn(16, 3, 10, 10).double(), torch.randint(0, 4, (16,))
    norm = answer(CHANNELS)
    if not isinstance(norm, nn.Module):
        raise Refused("It returns no torch.nn.Module.")
    body = nn.Conv2d(3, CHANNELS, 3), norm, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
    model = nn.Sequential(*body).double()
    gradients = []
    for parts in (1, 4):
        model.train()
        model(x)
        model.zero_grad()
        for images, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (nn.functional.cross_entropy(model(images), labels) / parts).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    pairs = zip(*gradients, strict=True)
    error = max(difference(a, b) for a, b in pairs if b.abs().max() > 1e-12)
    images = torch.randn(16, CHANNELS, 10, 10).double() * 7 + 5
    with torch.no_grad():
        out = answer(CHANNELS).double().train()(images)
    off = max(float(out.mean().abs()), float((out.std() - 1).abs()))
    bench.write("norm", values={"error": error, "off": off})


# -- answers: one that passes, and some that do not ------------------------------------------


def group(channels):
    """Statistics within each sample: no other sample has a say."""
    from torch import nn

    return nn.GroupNorm(2, channels)


def batch(channels):
    """Statistics over the micro-batch: four small batches are not one large one."""
    from torch import nn

    return nn.BatchNorm2d(channels)


def batch_without_memory(channels):
    """No running averages; the statistics of the micro-batch all the same."""
    from torch import nn

    return nn.BatchNorm2d(channels, track_running_stats=False)


def nothing(channels):
    """Nothing normalised, nothing to disagree on."""
    from torch import nn

    return nn.Identity()
