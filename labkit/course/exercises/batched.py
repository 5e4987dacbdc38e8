"""Challenge: a thousand small products in a few calls."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import Counting, difference
from labkit.experiments.exercise import Refused

COUNT, N = 500, 24


def check(answer: Any, bench: Workbench) -> None:
    """Count operations and FLOPs; compare with the products one by one."""
    a, b = torch.randn(COUNT, N, N), torch.randn(COUNT, N, N)
    right = one_by_one(a, b)
    with Counting() as counting:
        found = answer(a.clone(), b.clone())
    if difference(found, right) > 1e-5:
        raise Refused("It does not return all the products, as (count, n, n).")
    with FlopCounterMode(display=False) as flops:
        answer(a.clone(), b.clone())
    share = flops.get_total_flops() / (2 * COUNT * N**3)
    bench.write("calls", values={"operations": len(counting.names), "flops": share})


# -- answers: one that passes, and some that do not ------------------------------------------


def one_by_one(a, b):
    """A call each."""
    import torch

    return torch.stack([x @ y for x, y in zip(a, b, strict=True)])


def batched(a, b):
    """One call for all."""
    return a @ b


def in_numpy(a, b):
    """Where nobody counts: not on the device at all."""
    import torch

    return torch.from_numpy(a.numpy() @ b.numpy())


def first_hundred(a, b):
    """A fifth of the work."""
    import torch

    return torch.cat([a[:100] @ b[:100], torch.zeros_like(a[100:])])


def block_diagonal(a, b):
    """One product of huge matrices that are nearly all zeros."""
    import torch

    whole = torch.block_diag(*a) @ torch.cat(list(b))
    return whole.view(a.shape)
