"""Process-wide switches that slow a program: a debugging aid left on, a profiler never stopped.

They are set before the loop, on lines that no sampled stack shows. So they are read in the
program's own process now and then; what was on at every look counts. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class Switch(NamedTuple):
    """What a switch does, and the line to delete."""

    does: str
    delete: str


SWITCHES = {
    "anomaly mode": Switch(
        "keeps a traceback for each operator, and checks every gradient for NaN",
        "torch.autograd.set_detect_anomaly(True)",
    ),
    "torch's profiler": Switch(
        "records every operator of every step",
        "profiler.start(), or give it a schedule(wait, warmup, active, repeat=1)",
    ),
    "a tracer": Switch(
        "a debugger or coverage tool is called for each line of Python",
        "sys.settrace(..), or run without the debugger",
    ),
    "a Python profiler": Switch(
        "is called for each function call",
        "sys.setprofile(..) or cProfile's enable(), or run without -m cProfile",
    ),
    "CUDA_LAUNCH_BLOCKING": Switch(
        "has the host wait for every kernel", "CUDA_LAUNCH_BLOCKING=1 from the environment"
    ),
}


def switches_on() -> set[str]:
    """Return the switches that are on now, by their keys in `SWITCHES`."""
    torch = sys.modules.get("torch")
    if torch is None:
        return set()
    is_on = {
        "anomaly mode": torch.is_anomaly_enabled(),
        "torch's profiler": torch._C._autograd._profiler_enabled(),
        "a tracer": sys.gettrace() is not None,
        "a Python profiler": sys.getprofile() is not None,
        "CUDA_LAUNCH_BLOCKING": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
    }
    return {name for name, value in is_on.items() if value}
