"""What an answer does, counted operation by operation: for checks that no noise can sway."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.experiments.exercise import Refused


class Counting(TorchDispatchMode):
    """Counts operations and the bytes they read and write; views do neither."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and count it."""
        out = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            self.names.append(str(func))
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return out


def difference(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference, over the largest right value; refuse what cannot have one."""
    if not isinstance(found, torch.Tensor) or found.shape != right.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise Refused(f"It returns {shape}, not a tensor of shape {tuple(right.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise Refused("There are infinities or NaN in what it returns.")
    return float((found.double() - right.double()).abs().max() / right.double().abs().max())
