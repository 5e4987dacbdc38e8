"""Challenge: the same function without a graph break."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.experiments.exercise import Refused


def broken(x: torch.Tensor) -> torch.Tensor:
    """The function of the task: `.item()` ends the graph in the middle."""
    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


def check(answer: Any, bench: Workbench) -> None:
    """Count the graphs that Dynamo makes of the answer; compare its results with the task's."""
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale  # (64, 32)
        if not torch.allclose(answer(x.clone()), broken(x), atol=1e-6):
            raise Refused("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    found = torch._dynamo.explain(answer)(torch.randn(64, 32))
    bench.write("graphs", values={"graphs": found.graph_count, "breaks": found.graph_break_count})


# -- answers: one that passes, and some that do not ------------------------------------------


def whole(x):
    """One graph: the condition becomes a choice between tensors."""
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


def still_broken(x):
    """A condition on a tensor's value breaks the graph with or without .item()."""
    y = torch.relu(x * 2)
    if y.sum() > 10:
        y = y - y.mean()
    return y * 0.5


def other_function(x):
    """One graph, because the condition is gone."""
    return torch.relu(x * 2) * 0.5
