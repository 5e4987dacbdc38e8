"""Whether torch.compile can act on a device, and why not."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch


def compile_lacks(device: torch.device) -> str | None:
    """Return why torch.compile cannot act on `device`; None where it can."""
    if os.environ.get("TORCH_COMPILE_DISABLE", "0") not in ("", "0"):
        return "torch.compile is switched off (TORCH_COMPILE_DISABLE): what would run is eager"
    if device.type == "mps":
        return "torch.compile for Apple GPUs is not used here: still a prototype in PyTorch"
    if device.type == "cpu":
        lost = "torch.compile needs a C++ compiler on a CPU and found none: install g++ or clang++"
        return None if compiler() else lost
    if importlib.util.find_spec("triton") is None:
        return "torch.compile on a GPU needs Triton and found none: pip install triton"
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "clang", "cl"))):
        return "Triton needs a C compiler to launch its kernels and found none: install gcc"
    return None


def compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile uses on a CPU; None without one."""
    names = (os.environ.get("CXX", "g++"), "g++", "clang++", "cl")
    return next(filter(None, map(shutil.which, names)), None)
