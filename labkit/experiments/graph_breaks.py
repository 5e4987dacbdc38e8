"""Graph breaks and recompilations, found with PyTorch's own tools: only captured, not compiled."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from labkit.spec import experiment
from labkit.wiring import Later

torch = Later("torch")

LENGTHS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 88)  # more than torch._dynamo recompiles for


def broken(x: torch.Tensor) -> torch.Tensor:
    """Decide in Python in the middle: the tensor's value is needed to go on."""
    y = (x * 2).relu()
    if y.sum().item() > 0:
        y = y - y.mean()
    return y * 0.5


def whole(x: torch.Tensor) -> torch.Tensor:
    """Do the same as one graph: the decision is made on the device."""
    y = (x * 2).relu()
    y = (y - y.mean()).where(y.sum() > 0, y)
    return y * 0.5


@experiment("what torch.compile captures, and how often again")
def graph_breaks(job: Any, bench: Any) -> None:
    """Count the graphs and breaks of two functions, and the captures for changing lengths."""
    x = torch.randn(64, device=bench.device)
    torch.testing.assert_close(broken(x), whole(x))
    for function in (broken, whole):
        torch._dynamo.reset()
        found = torch._dynamo.explain(function)(x)
        said = ([line.strip() for line in why.reason.split("\n")] for why in found.break_reasons)
        reasons = [" | ".join(list(filter(None, lines))[:3])[:400] for lines in said]  # with hints
        values = {"graphs": found.graph_count, "breaks": found.graph_break_count}
        bench.write("explain", function=function.__name__, values=values | {"reasons": reasons})
    for name, dynamic, lengths in (
        ("every length its own graph (dynamic=False)", False, LENGTHS),
        ("PyTorch's default", None, LENGTHS),
        ("one graph for all (dynamic=True)", True, LENGTHS),
        ("padded to one length", None, (max(LENGTHS),) * len(LENGTHS)),
    ):
        bench.write("captures", way=name, values=captures(dynamic, lengths, bench.device))


def captures(dynamic: bool | None, lengths: tuple, device: torch.device) -> dict[str, Any]:
    """Call a captured function with batches of these lengths; count the captures.

    `eager` is how many calls ran without one, since Dynamo gives up at `recompile_limit`.
    """
    torch._dynamo.reset()
    captured, ran, log = [], [], []

    def backend(graph: torch.fx.GraphModule, _: list) -> Callable:
        captured.append(graph)
        return lambda *inputs: ran.append(1) or graph.forward(*inputs)

    def heard(record: logging.LogRecord) -> bool:
        found = re.search(r"(tensor .*?size mismatch.*|.*?==.*)", record.getMessage())
        if "ecompil" in record.getMessage() and found:
            log.append(re.sub(r"\s*#.*", "", found.group(0)).strip()[:160])
        return True

    work = torch.compile(whole, backend=backend, dynamic=dynamic)
    torch._logging.set_logs(recompiles=True)
    logger = logging.getLogger("torch._dynamo.guards.__recompiles")
    logger.addFilter(heard)
    for length in lengths:
        work(torch.randn(length, device=device))
    logger.removeFilter(heard)
    torch._logging.set_logs()
    limit = torch._dynamo.config.recompile_limit
    return {"captured": len(captured), "eager": len(lengths) - len(ran), "calls": len(lengths),
            "limit": limit, "log": log[:3]}  # fmt: skip
