"""Notebook 07, torch.compile and kernels: its challenges."""

from labkit.course.answer import Refused
from labkit.course.task import Goal, code, counting, difference


def broken(x):
    """The function of the task: `.item()` ends the graph in the middle."""
    import torch

    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


def whole(x):
    """One graph: the condition becomes a choice between tensors."""
    import torch

    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


@code(
    "07-graph-break",
    "Python's `if` needs the value of a tensor, so the graph ends there.",
    "torch.where chooses between two tensors without leaving the graph.",
    start=broken, solution=whole, graphs=Goal("graphs", at_most=1),
)  # fmt: skip
def graph_break(answer, torch):
    """remove the graph break.

    Write a function that returns the same as this one and is captured as one graph.
    """
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale
        if not torch.allclose(answer(x.clone()), broken(x), atol=1e-6):
            raise Refused("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    return {"graphs": torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


def by_hand(x):
    """GELU as its formula is written: every sign in it is a pass over memory."""
    import torch

    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def fused(x):
    """One operation that reads x and writes the result."""
    from torch.nn.functional import gelu

    return gelu(x, approximate="tanh")


@code(
    "07-bytes",
    "Count the passes: each sign in the formula is one.",
    "The formula is the tanh approximation of GELU, and torch has it as one kernel.",
    start=by_hand, solution=fused, share=Goal("bytes over by_hand's", at_most=0.5),
    passes=Goal("times that x is read and written", at_least=1.0),
)  # fmt: skip
def bytes_moved(answer, torch):
    """halve the bytes.

    Write a function that returns the same as by_hand (to 1e-5), in FP32, with at most half of the
    memory traffic: every operation reads its inputs and writes its output, and what is changed in
    place is read and written. Without torch.compile, whose kernels the count does not see.
    """
    x, moved = torch.randn(256, 512) * 3, []
    for function in (by_hand, answer):
        given = x.clone()
        with counting() as counted, torch.no_grad():
            found = function(given)
        moved.append(counted.bytes)
    if difference(found, by_hand(x)) > 1e-5 or found.dtype != x.dtype:
        raise Refused("It does not return what by_hand returns.")
    once = 2 * x.nbytes  # x is read and the result is written, whatever else happens
    return {"share": moved[1] / moved[0], "passes": moved[1] / once}


def as_it_comes(x):
    """A graph for each length."""
    return x


def buckets(x):
    """To the next of three lengths."""
    from torch.nn.functional import pad

    length = next(size for size in (16, 32, 48) if size >= x.shape[1])
    return pad(x, (0, length - x.shape[1]))


@code(
    "07-buckets",
    "Three graphs are three lengths: which, so that little is appended?",
    start=as_it_comes, solution=buckets, graphs=Goal("graphs", at_most=3),
    work=Goal("numbers over those of x", at_most=1.5),
)  # fmt: skip
def few_graphs(answer, torch):
    """fifty lengths, three graphs.

    Sentences x of shape (2, length) come in every length from 1 to 48, and each new length compiles
    the model anew. Write a function of (x) that returns x with zeros appended along the second
    dimension, so that there are at most three graphs and the model works on at most 1.5 times as
    many numbers as there are.
    """
    longest, graphs = 48, []

    def backend(module, _inputs):
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


def pays_after(compile_s, eager_ms, compiled_ms):
    """The first step count by which the saved milliseconds are at least those of compiling."""
    import math

    saved_ms = eager_ms - compiled_ms
    return math.ceil(1000 * compile_s / saved_ms) if saved_ms > 0 else None


@code(
    "07-break-even",
    "Each step saves eager_ms - compiled_ms; what if that is nothing, or less?",
    solution=pays_after, wrong=Goal("wrong results", at_most=0),
)  # fmt: skip
def break_even(answer, _torch):
    """when a compilation has paid.

    Write a function of (compile_s, eager_ms, compiled_ms), seconds to compile and milliseconds a
    step, that returns the smallest number of steps after which the compiled run is no later than
    the eager one: a whole number, None if there is none. With (30, 20, 15) it is 6000.
    """
    cases = (30, 20, 15), (1, 7, 4), (10, 12, 12), (10, 12, 15), (0, 10, 5)
    return {"wrong": sum(answer(*case) != pays_after(*case) for case in cases)}
