"""Notebook 07, torch.compile and kernels: its challenges."""

import math

from labkit.course.task import Goal, Refused, code, counting, difference
from labkit.wiring import Later

torch, F = Later("torch"), Later("torch.nn.functional")


@code("07-graph-break",
      "Python's `if` needs the value of a tensor, so the graph ends there.",
      "torch.where chooses between two tensors without leaving the graph.",
      graphs=Goal("graphs", at_most=1))  # fmt: skip
class GraphBreak:
    """remove the graph break.

    Write a function that returns the same as this one and is captured as one graph.
    """

    def start(x):
        import torch

        y = torch.relu(x * 2)
        if y.sum().item() > 10:
            y = y - y.mean()
        return y * 0.5

    def solution(x):
        import torch

        y = torch.relu(x * 2)
        y = torch.where(y.sum() > 10, y - y.mean(), y)
        return y * 0.5

    def check(answer):
        for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
            x = torch.randn(64, 32) * scale
            if not torch.allclose(answer(x.clone()), GraphBreak.start(x), atol=1e-6):
                raise Refused("It does not return what the function of the task returns.")
        torch._dynamo.reset()
        return {"graphs": torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


@code("07-bytes", "Count the passes: each sign in the formula is one.",
      "The formula is the tanh approximation of GELU, and torch has it as one kernel.",
      share=Goal("bytes over those of the formula", at_most=0.5),
      passes=Goal("times that x is read and written", at_least=1.0))  # fmt: skip
class Bytes:
    """halve the bytes.

    Write a function that returns the same as this one (to 1e-5), in FP32 and without torch.compile,
    with at most half of the memory traffic: an operation reads its inputs and writes its output.
    """

    def start(x):
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))

    def solution(x):
        return F.gelu(x, approximate="tanh")

    def check(answer):
        x, moved = torch.randn(256, 512) * 3, []
        for function in (Bytes.start, answer):
            given = x.clone()
            with counting() as counted, torch.no_grad():
                found = function(given)
            moved.append(counted.bytes)
        if difference(found, Bytes.start(x)) > 1e-5 or found.dtype != x.dtype:
            raise Refused("It does not return what the formula returns.")
        once = 2 * x.nbytes  # x is read and the result is written, whatever else happens
        return {"share": moved[1] / moved[0], "passes": moved[1] / once}


@code("07-buckets",
      "Three graphs are three lengths: which, so that little is appended?",
      graphs=Goal("graphs", at_most=3),
      work=Goal("numbers over those of x", at_most=1.5))  # fmt: skip
class Buckets:
    """fifty lengths, three graphs.

    Sentences x of shape (2, length) come in every length from 1 to 48, and each new length compiles
    the model anew. Write a function of (x) that returns x with zeros appended, so that there are at
    most three graphs and the model works on at most 1.5 times as many numbers as there are.
    """

    def solution(x):
        length = next(size for size in (16, 32, 48) if size >= x.shape[1])
        return F.pad(x, (0, length - x.shape[1]))

    def check(answer):
        longest, graphs = 48, []

        def backend(module, _inputs):
            graphs.append(module)
            return module.forward

        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 2 * longest
        model = torch.compile(torch.nn.ReLU(), backend=backend, dynamic=False)
        real = padded = 0
        for length in torch.randperm(longest).add(1).tolist():
            x = torch.randn(2, length)
            ready = answer(x.clone())
            if difference(ready[:, :length], x) > 0 or bool(ready[:, length:].any()):
                raise Refused("It must return x, followed by zeros along the second dimension.")
            model(ready)
            real, padded = real + x.numel(), padded + ready.numel()
        return {"graphs": len(graphs), "work": padded / real}


@code("07-break-even",
      "Each step saves eager_ms - compiled_ms; what if that is nothing, or less?",
      wrong=Goal("wrong results", at_most=0))  # fmt: skip
class BreakEven:
    """when a compilation has paid.

    Write a function of (compile_s, eager_ms, compiled_ms) that returns the smallest number of steps
    after which the compiled run is no later than the eager one, or None: 6000 for (30, 20, 15).
    """

    def solution(compile_s, eager_ms, compiled_ms):
        saved_ms = eager_ms - compiled_ms
        return math.ceil(1000 * compile_s / saved_ms) if saved_ms > 0 else None

    def check(answer):
        cases = (30, 20, 15), (1, 7, 4), (10, 12, 12), (10, 12, 15), (0, 10, 5)
        return {"wrong": sum(answer(*case) != BreakEven.solution(*case) for case in cases)}
