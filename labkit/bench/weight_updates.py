"""Does code of the user's own update weights, in the place of an optimizer of PyTorch's?"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable
from types import FrameType

from labkit.bench import stack
from labkit.bench.expressions import expression

OPTIMIZERS = "torch.optim.optimizer"
DECORATORS = "torch.utils._contextlib"  # of `step`, as @torch.no_grad() is
# Writes to weights: methods of a tensor, and its attribute `data`
IN_PLACE = frozenset(
    ["add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "copy_", "data"]
)


def is_optimizers(frames: Iterable[FrameType]) -> bool:
    """Return whether the first of the frames is code of an optimizer that the user wrote.

    Then no library is between it and the optimizer's `step`. A closure that PyTorch's own optimizer
    calls, as Lightning's whole step is, is none.
    """
    for frame in frames:
        module = stack.module_of_frame(frame)
        if module == OPTIMIZERS:
            return True
        if not stack.is_users(frame.f_code.co_filename) and module != DECORATORS:
            return False
    return False


def updates_weights(frame: FrameType, is_loop: bool) -> bool:
    """Return whether a user's code updates weights by their gradients: it names both, and writes.

    Of the loop itself, which does all else as well, it is told by the operation alone.
    """
    if is_loop:
        node = expression(frame)
        parts = ast.walk(node) if node else ()
        names = {each.attr for each in parts if isinstance(each, ast.Attribute)}
        writes = not isinstance(node, ast.Call)  # w -= lr * w.grad
    else:
        code = frame.f_code
        names = {*code.co_names}
        writes = any(_subtracts_in_place(step) for step in dis.get_instructions(code))
    if "grad" not in names or {"backward", "autograd"} & names:
        return False
    return writes or not IN_PLACE.isdisjoint(names) or any("_foreach_" in name for name in names)


def _subtracts_in_place(step: dis.Instruction) -> bool:
    """Return whether an instruction is that of `w -= x`: since Python 3.11 a BINARY_OP."""
    return step.opname == "INPLACE_SUBTRACT" or (step.opname, step.argrepr) == ("BINARY_OP", "-=")
