"""The size of an operation that suits the device: more than its launch, and no call of seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from labkit.bench.workbench import Workbench

LAUNCHES = 20  # an operation takes as long as so many launches: at most a 20th of it is not its own
LONGEST_S = 0.3  # of one call: a point takes a handful of calls, an experiment dozens of points
SIDES = (1024, 2048, 4096, 8192)  # of square matrices


def fitting(
    work_of: Callable[[int], Callable[[], Any]],
    sizes: Sequence[int],
    bench: Workbench,
    launches: float = LAUNCHES,
) -> int:
    """Return the first of the ascending `sizes` at which a call takes as long as `launches`.

    No larger one is tried where its call might take longer than LONGEST_S, going by the cube of
    the size; so with `launches` infinite it is the largest sensible one. On a CPU, where a launch
    is nothing, it is the first, and nothing is timed.
    """
    if bench.device.type == "cpu":
        return sizes[0]
    for size, larger in zip(sizes, (*sizes[1:], math.inf), strict=True):
        seconds = bench.quick_s(work_of(size))
        if seconds >= launches * bench.launch_s or seconds * (larger / size) ** 3 > LONGEST_S:
            break
    return size
