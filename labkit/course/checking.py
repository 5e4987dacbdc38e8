"""What the checks of code challenges share: how answers are compared and refused."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch

from labkit.course.challenge import Answer
from labkit.course.code_challenge import Numbers, Refused
from labkit.course.goals import Goal

ERROR = "largest error"
RIGHT = "share of right answers"
EXACT = Goal(ERROR, at_most=1e-6)
ALL_RIGHT = Goal(RIGHT, at_least=1.0)


def share_right(answer: Answer, right: Answer, cases: Iterable[tuple]) -> Numbers:
    """Return the share of the cases in which an answer is right, but for rounding."""
    found = [rounded(answer(*copy.deepcopy(case))) == rounded(right(*case)) for case in cases]
    return {RIGHT: sum(found) / len(found)}


def rounded(value: object) -> object:
    """Return a value with its numbers as far as rounding leaves them alike."""
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, (int, float)) else value


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
