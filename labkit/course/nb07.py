"""Notebook 07, torch.compile and kernels: its challenges."""

from __future__ import annotations

from typing import Any

from labkit.course.answers import Refused, counting, difference
from labkit.course.task import at_least, at_most, code


@code(
    "07-graph-break",
    "Python's `if` needs the value of a tensor, so the graph ends there.",
    "torch.where chooses between two tensors without leaving the graph.",
    graphs=at_most(1, "graphs"),
)
def graph_break(answer: Any) -> dict[str, float]:
    """remove the graph break.

    Write a function that returns the same as this one and is captured as one graph.
    """
    import torch

    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale  # (64, 32)
        if not torch.allclose(answer(x.clone()), broken(x), atol=1e-6):
            raise Refused("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    found = torch._dynamo.explain(answer)(torch.randn(64, 32))
    return {"graphs": found.graph_count, "breaks": found.graph_break_count}


@graph_break.starts_from
def broken(x):
    """The function of the task: `.item()` ends the graph in the middle."""
    import torch

    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


@graph_break.solved_by
def whole(x):
    """One graph: the condition becomes a choice between tensors."""
    import torch

    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


@code(
    "07-bytes",
    "Count the passes: each sign in the formula is one.",
    "The formula is the tanh approximation of GELU, and torch has it as one kernel.",
    share=at_most(0.5, "bytes over by_hand's"),
    passes=at_least(1.0, "times that x is read and written"),
)
def bytes_moved(answer: Any) -> dict[str, float]:
    """halve the bytes.

    Write a function that returns the same as by_hand (to 1e-5), in FP32, with at most
    half of the memory traffic: every operation reads its inputs and writes its output,
    and what is changed in place is read and written. Without torch.compile, whose
    kernels the count does not see.
    """
    import torch

    x = torch.randn(256, 512) * 3
    moved = []
    for function in (by_hand, answer):
        with counting() as counted, torch.no_grad():
            found = function(x.clone())
        moved.append(counted.bytes - 2 * x.nbytes)  # less the clone's, which is ours
    if difference(found, by_hand(x)) > 1e-5 or found.dtype != x.dtype:
        raise Refused("It does not return what by_hand returns.")
    once = 2 * x.nbytes  # x is read and the result is written, whatever else happens
    return {"share": moved[1] / moved[0], "passes": moved[1] / once}


@bytes_moved.starts_from
def by_hand(x):
    """GELU as its formula is written: every sign in it is a pass over memory."""
    import torch

    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


@bytes_moved.solved_by
def fused(x):
    """One operation that reads x and writes the result."""
    from torch.nn.functional import gelu

    return gelu(x, approximate="tanh")


@code(
    "07-buckets",
    "Three graphs are three lengths: which, so that little is appended?",
    graphs=at_most(3, "graphs"),
    work=at_most(1.5, "numbers over those of x"),
)
def few_graphs(answer: Any) -> dict[str, float]:
    """fifty lengths, three graphs.

    Sentences x of shape (2, length) come in every length from 1 to 48, and each new
    length compiles the model anew. Write a function of (x) that returns x with zeros
    appended along the second dimension, so that there are at most three graphs and the
    model works on at most 1.5 times as many numbers as there are.
    """
    import torch

    longest, graphs = 48, []

    def backend(module: Any, _inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 2 * longest
    model = torch.compile(lambda x: torch.relu(x) * 2, backend=backend, dynamic=False)
    real = padded = 0
    for length in torch.randperm(longest).add(1).tolist():
        x = torch.randn(2, length)
        ready = answer(x.clone())
        if difference(ready[:, :length], x) > 0 or bool(ready[:, length:].any()):
            raise Refused("It must return x, followed by zeros along the second dimension.")
        model(ready)
        real, padded = real + x.numel(), padded + ready.numel()
    return {"graphs": len(graphs), "work": padded / real}


@few_graphs.starts_from
def as_it_comes(x):
    """A graph for each length."""
    return x


@few_graphs.solved_by
def buckets(x):
    """To the next of three lengths."""
    from torch.nn.functional import pad

    length = next(size for size in (16, 32, 48) if size >= x.shape[1])
    return pad(x, (0, length - x.shape[1]))


@code(
    "07-break-even",
    "Each step saves eager_ms - compiled_ms; what if that is nothing, or less?",
    wrong=at_most(0, "wrong results"),
)
def break_even(answer: Any) -> dict[str, float]:
    """when a compilation has paid.

    Write a function of (compile_s, eager_ms, compiled_ms), seconds to compile and
    milliseconds a step, that returns the smallest number of steps after which the
    compiled run is no later than the eager one: a whole number, None if there is none.
    With (30, 20, 15) it is 6000.
    """
    cases = {
        (30, 20, 15): 6000,
        (1, 7, 4): 334,  # 333 steps save 999 ms
        (10, 12, 12): None,
        (10, 12, 15): None,
        (0, 10, 5): 0,
    }
    return {"wrong": sum(answer(*case) != right for case, right in cases.items())}


@break_even.solved_by
def pays_after(compile_s, eager_ms, compiled_ms):
    """The first step count by which the saved milliseconds are at least those of compiling."""
    import math

    saved_ms = eager_ms - compiled_ms
    return math.ceil(1000 * compile_s / saved_ms) if saved_ms > 0 else None
