"""Challenge: a softmax of FP16 scores that neither overflows nor loses its small terms."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import Counting, difference
from labkit.experiments.exercise import Refused


def check(answer: Any, bench: Workbench) -> None:
    """Compare with double precision: large scores, and rows with very many equal ones."""
    worst = 0.0
    for scores in (torch.randn(8, 100) * 30, torch.zeros(1, 100_000), torch.randn(4, 50) + 1000):
        scores = scores.half()
        with Counting() as counting:
            found = answer(scores.clone())
        if any("softmax" in name for name in counting.names):
            raise Refused("Make it of exp and sum, to see what they need.")
        worst = max(worst, difference(found, scores.double().softmax(-1)))
    bench.write("softmax", values={"error": worst})


# -- answers: one that passes, and some that do not ------------------------------------------


def in_fp32(scores):
    """FP32 in between, and the largest score taken off first."""
    scores = scores.float()
    powers = (scores - scores.max(-1, keepdim=True).values).exp()
    return powers / powers.sum(-1, keepdim=True)


def as_written(scores):
    """exp(12) is more than FP16 can hold."""
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True)


def sums_in_fp16(scores):
    """No exp overflows any more, but a sum of a hundred thousand ones does."""
    powers = (scores - scores.max(-1, keepdim=True).values).exp()
    return powers / powers.sum(-1, keepdim=True)


def largest_only(scores):
    """Looks right where one score stands out."""
    return (scores == scores.max(-1, keepdim=True).values).half()
