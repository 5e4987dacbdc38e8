"""Challenge: lengths that change all the time, and few compilations."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import difference
from labkit.experiments.exercise import Refused

LONGEST = 48


def check(answer: Any, bench: Workbench) -> None:
    """Count the graphs that are made for every length, and how much of the work is padding."""
    graphs = 0

    def counting(module: Any, _inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 2 * LONGEST
    model = torch.compile(lambda x: torch.relu(x) * 2, backend=counting, dynamic=False)
    real = padded = 0
    for length in torch.randperm(LONGEST).add(1).tolist():
        x = torch.randn(2, length)
        ready = answer(x.clone())
        if difference(ready[:, :length], x) > 0 or bool(ready[:, length:].any()):
            raise Refused("It must return x, followed by zeros along the second dimension.")
        model(ready)
        real, padded = real + x.numel(), padded + ready.numel()
    bench.write("graphs", values={"graphs": graphs, "work": padded / real})


# -- answers: one that passes, and some that do not ------------------------------------------


def buckets(x):
    """To the next of three lengths."""
    from torch.nn.functional import pad

    length = next(size for size in (16, 32, 48) if size >= x.shape[1])
    return pad(x, (0, length - x.shape[1]))


def as_it_comes(x):
    """A graph for each length."""
    return x


def to_the_longest(x):
    """One graph, and twice the work."""
    from torch.nn.functional import pad

    return pad(x, (0, 48 - x.shape[1]))


def cut(x):
    """Short sentences are quick."""
    from torch.nn.functional import pad

    return pad(x, (0, 24 - x.shape[1]))
