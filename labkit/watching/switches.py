"""Process-wide switches that slow a program: a debugging aid left on, a profiler never stopped.

They are set before the loop, on lines that no sampled stack shows. So they are read in the
program's own process now and then; what was on at every look counts. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple


class Switch(NamedTuple):
    """A row: how to see that it is on, what it does, and the line to delete."""

    is_on: Callable[[ModuleType], bool]  # of torch
    does: str
    delete: str
    debugs: bool = True  # rather than being there for a purpose of its own, which the user weighs


SWITCHES = {
    "anomaly mode": Switch(
        lambda torch: torch.is_anomaly_enabled(),
        "keeps a traceback for each operator, and checks every gradient for NaN",
        "torch.autograd.set_detect_anomaly(True)",
    ),
    "torch's profiler": Switch(
        lambda torch: torch._C._autograd._profiler_enabled(),
        "records every operator of every step",
        "profiler.start(), or give it a schedule(wait, warmup, active, repeat=1)",
    ),
    "a tracer": Switch(
        lambda _: sys.gettrace() is not None,
        "a debugger or coverage tool is called for each line of Python",
        "sys.settrace(..), or run without the debugger",
    ),
    "a Python profiler": Switch(
        lambda _: sys.getprofile() is not None,
        "is called for each function call",
        "sys.setprofile(..) or cProfile's enable(), or run without -m cProfile",
    ),
    "CUDA_LAUNCH_BLOCKING": Switch(
        lambda _: os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "has the host wait for every kernel",
        "CUDA_LAUNCH_BLOCKING=1 from the environment",
    ),
    "Python's development mode": Switch(
        lambda _: sys.flags.dev_mode,
        "checks each piece of memory that Python allocates or frees",
        "-X dev, or PYTHONDEVMODE from the environment",
    ),
    "deterministic mode": Switch(
        lambda torch: torch.are_deterministic_algorithms_enabled(),
        "rules out the fastest kernels of some operators",
        "torch.use_deterministic_algorithms(True), where runs need not be equal to the bit",
        debugs=False,
    ),
    "float64 by default": Switch(
        lambda torch: torch.get_default_dtype() is torch.float64,
        "makes every new tensor and weight twice as large",
        "torch.set_default_dtype(torch.float64)",
        debugs=False,
    ),
    "cudnn.benchmark": Switch(
        lambda torch: torch.backends.cudnn.benchmark and torch.cuda.is_initialized(),
        "tries all algorithms anew for each size of a batch",
        "torch.backends.cudnn.benchmark = True, or make all batches one size",
        debugs=False,
    ),
}
OF_CHANGING_SIZES = "cudnn.benchmark"  # costs something only where batches have several sizes


def switches_on() -> set[str]:
    """Return the switches that are on now, by their keys in `SWITCHES`."""
    torch = sys.modules.get("torch")
    if torch is None:
        return set()
    return {name for name, switch in SWITCHES.items() if switch.is_on(torch)}
