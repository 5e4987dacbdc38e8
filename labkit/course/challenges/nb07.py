"""The challenges of notebook 07, torch.compile and kernels."""

import importlib.util
import os
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import silu

from labkit.course.challenge import Answer
from labkit.course.checking import ERROR, difference
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal
from labkit.instruments.compiling import compile_lacks
from labkit.instruments.devices import find_device

GRAPHS = "graphs"
LAUNCHES = "launches of Triton kernels, each time"


def broken(x: Tensor) -> Tensor:
    """Return what the task asks for, in two graphs."""
    y = torch.relu(x * 2)
    if y.sum().item() > 10:
        y = y - y.mean()
    return y * 0.5


def one_graph(x: Tensor) -> Tensor:
    """Choose between two tensors without leaving the graph."""
    y = torch.relu(x * 2)
    y = torch.where(y.sum() > 10, y - y.mean(), y)
    return y * 0.5


@code(
    "07-graph-break",
    hints=(
        "Python's `if` needs the value of a tensor, so the graph ends there.",
        "torch.where chooses between two tensors without leaving the graph.",
    ),
    goals=(Goal(GRAPHS, at_most=1),),
    example=one_graph,
)
def graph_break(answer: Answer) -> Numbers:
    """Remove the graph break.

    Write a function that returns the same as the one of the notebook and is captured as one graph.
    """
    for scale in (0.01, 1.0, 5.0, -1.0):  # both sides of the condition
        x = torch.randn(64, 32) * scale
        if not torch.allclose(answer(x.clone()), broken(x), atol=1e-6):
            raise Refused("It does not return what the function of the task returns.")
    torch._dynamo.reset()
    return {GRAPHS: torch._dynamo.explain(answer)(torch.randn(64, 32)).graph_count}


def gated_silu(x: Tensor, gate: Tensor) -> Tensor:
    """Return x / (1 + exp(-x)) * gate, computed by one kernel."""
    global tl  # Triton looks its language up among a kernel's globals
    import triton
    import triton.language as tl

    @triton.jit
    def gated(x, gate, out, length, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < length
        value = tl.load(x + place, inside)
        value = value / (1 + tl.exp(-value)) * tl.load(gate + place, inside)
        tl.store(out + place, value, inside)

    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 256),)
    gated[grid](x, gate, out, x.numel(), BLOCK=256)  # pyright: ignore[reportArgumentType]
    return out


@code(
    "07-kernel",
    hints=(
        "Load x and gate once each, compute in FP32, store once; the mask is that of section 7.",
        "x / (1 + tl.exp(-x)) * gate, and a grid of triton.cdiv(x.numel(), BLOCK) instances.",
    ),
    goals=(Goal(ERROR, at_most=1e-5), Goal(LAUNCHES, at_least=1, at_most=1)),
    example=gated_silu,
)
def gated_kernel(answer: Answer) -> Numbers:
    """A fused kernel.

    Write a Triton kernel of out = x / (1 + exp(-x)) * gate, and a function of (x, gate), two FP32
    vectors of any length, that launches it once and returns out.
    """
    device = device_that_compiles()
    from triton.runtime.jit import KernelInterface

    counted = {"autospec": True, "side_effect": KernelInterface.__getitem__}
    errors = []
    launches = []
    for length in (1, 255, 256, 1000, 5000):
        x = torch.randn(length, device=device)
        gate = torch.randn(length, device=device)
        with patch.object(KernelInterface, "__getitem__", **counted) as launched:
            found = answer(x.clone(), gate.clone())
        errors.append(difference(found, silu(x) * gate))
        launches.append(launched.call_count)
    furthest_from_one = max(launches, key=lambda count: abs(count - 1))
    return {ERROR: max(errors), LAUNCHES: furthest_from_one}


def device_that_compiles() -> torch.device:
    """Return where Triton's kernels run; raises Refused where they cannot."""
    if importlib.util.find_spec("triton") is None:
        raise Refused("Triton is missing here. On Linux: pip install 'gpu-labkit[kernels]'")
    found = find_device()
    device = found if found.type == "cuda" else torch.device("cpu")
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif lacking := compile_lacks(device):
        raise Refused(lacking)
    return device
