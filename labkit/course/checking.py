"""What the checks of code challenges share: how answers are compared, counted and refused."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.course.challenge import Answer
from labkit.course.code_challenge import Numbers, Refused
from labkit.course.goals import Goal

ERROR = "largest error"
RIGHT = "share of right answers"
EXACT = Goal(ERROR, at_most=1e-6)
ALL_RIGHT = Goal(RIGHT, at_least=1.0)


def largest_error(answer: Answer, right: Answer, cases: Iterable[tuple]) -> Numbers:
    """Return how far an answer's numbers are from the right ones at most."""
    return {ERROR: max(abs(answer(*copy.deepcopy(case)) - right(*case)) for case in cases)}


def share_right(answer: Answer, right: Answer, cases: Iterable[tuple]) -> Numbers:
    """Return in which share of the cases an answer is the right one."""
    found = [answer(*copy.deepcopy(case)) == right(*case) for case in cases]
    return {RIGHT: sum(found) / len(found)}


def difference(found: object, right: torch.Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the largest right value.

    Raises Refused where `found` is not a finite tensor of the right shape.
    """
    if not isinstance(found, torch.Tensor) or found.shape != right.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise Refused(f"It returns {shape}, not a tensor of shape {tuple(right.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise Refused("There are infinities or NaN in what it returns.")
    largest = (found.double() - right.double()).abs().max()
    return float(largest / right.double().abs().max())


class Counting(TorchDispatchMode):
    """Counts the operations that PyTorch runs and the bytes they read and write, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one operation and count it."""
        result = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            self.names.append(str(func))
            leaves = tree_leaves((args, kwargs, result))
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result
