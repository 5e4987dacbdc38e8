"""Challenge: the same function with half of the memory traffic."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.workbench import Workbench
from labkit.course.exercises.counting import Counting, difference
from labkit.experiments.exercise import Refused


def check(answer: Any, bench: Workbench) -> None:
    """Count the bytes every operation reads and writes, against those of the start."""
    x = torch.randn(256, 512) * 3
    moved = []
    for function in (by_hand, answer):
        with Counting() as counting, torch.no_grad():
            found = function(x.clone())
        moved.append(counting.bytes - 2 * x.nbytes)  # less the clone's, which is ours
    if difference(found, by_hand(x)) > 1e-5 or found.dtype != x.dtype:
        raise Refused("It does not return what by_hand returns.")
    once = 2 * x.nbytes  # x is read and the result is written, whatever else happens
    bench.write("bytes", values={"share": moved[1] / moved[0], "passes": moved[1] / once})


# -- answers: one that passes, and some that do not ------------------------------------------


def by_hand(x):
    """GELU as its formula is written: every sign in it is a pass over memory."""
    import torch

    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def fused(x):
    """One operation that reads x and writes the result."""
    from torch.nn.functional import gelu

    return gelu(x, approximate="tanh")


def in_place(x):
    """Fewer arrays, and the same traffic: what is changed in place is read and written, too."""
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(0.7978845608028654)
    return inner.tanh_().add_(1).mul_(x).mul_(0.5)


def other_function(x):
    """Another GELU, nearly the same."""
    from torch.nn.functional import gelu

    return gelu(x)


def in_half(x):
    """Half the bytes, and half the digits."""
    import torch

    x = x.half()
    return (0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))).float()


def uncounted(x):
    """Goes where nobody counts."""
    import numpy as np
    import torch

    x = x.numpy()
    inner = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return torch.from_numpy(np.float32(0.5) * x * (1 + np.tanh(inner)))
