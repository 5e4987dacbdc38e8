"""From what was asked for to what this device can do: the job, and what was not applied and why.

A knob that cannot act here is changed to what will really run and reported; never ignored.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

# Width and depth of each model by size of the device. CPU: a step of 5 to 6 ms on one core at
# the default batch of 16 images of 48 px. GPUs: by number of SMs, aimed at 5 to 20 ms a step, so
# that the default loader starves the card; not yet run on one.
SIZES = {
    "cpu": {"cnn": (16, 2), "mlp": (128, 3), "transformer": (64, 2)},
    "small": {"cnn": (128, 6), "mlp": (4096, 6), "transformer": (512, 8)},
    "large": {"cnn": (320, 10), "mlp": (8192, 8), "transformer": (1024, 16)},
}
TEXTBOOK = 2  # the 50 ms delay goes with 10 ms of compute, and takes no core from the model
LARGE_SMS = 80  # an A100 has 108 SMs, an H200 132, a T4 40, an RTX 4070 46


def settle(asked: dict[str, Any], device: torch.device) -> tuple[SimpleNamespace, dict[str, str]]:
    """Return the job (every knob with its final value) and {knob: why it was not applied}."""
    job = SimpleNamespace(**asked)
    job.device = str(device)
    if job.prep_ms is None:
        job.prep_ms = 50.0
    if job.io_ms is None:
        job.io_ms = 2.5 if job.dataset == "jpeg" else 0.0
    if job.num_workers and job.prefetch_factor is None:
        job.prefetch_factor = 2
    width, depth = SIZES[size_class(device)][job.model]
    job.width = job.width or width
    job.depth = job.depth or (depth * TEXTBOOK if job.dataset == "sleep" else depth)

    dropped: dict[str, str] = {}
    for name, value, reason in _inapplicable(job, device):
        if getattr(job, name) != value:
            setattr(job, name, value)
            dropped[name] = reason
    if asked["prep_ms"] is not None and job.dataset != "sleep":
        dropped["prep_ms"] = (
            f"only dataset='sleep' has a delay for a whole batch; this is {job.dataset!r}"
        )
    return job, dropped


def size_class(device: torch.device) -> str:
    """Which row of SIZES fits: "cpu", or a "small" or "large" GPU."""
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        return "small"
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return "large" if sms >= LARGE_SMS else "small"


def _inapplicable(job: SimpleNamespace, device: torch.device):
    """Yield (knob, what runs instead, why) for what this device or job cannot honour."""
    if device.type != "cuda":
        bus = "there is no CUDA device to copy to"
        yield "pin_memory", False, f"{bus}: page-locked memory would gain nothing"
        yield "non_blocking", False, f"{bus}: nothing to overlap"
        yield "prefetch_to_device", False, f"{bus}: nothing to overlap"
    elif job.non_blocking and not job.pin_memory:
        yield "non_blocking", False, "copies from pageable memory block: set pin_memory=True too"
    if job.model != "cnn":
        yield "channels_last", False, f"model={job.model!r} has no convolution stack to lay out"
    if why := precision_lacks(job.precision, device):
        yield "precision", "fp32", why
    if why := compile_lacks(job.compile, device):
        yield "compile", None, why
    elif job.compile == "reduce-overhead" and device.type != "cuda":
        yield "compile", "default", "CUDA graphs are a card's: compiled here without them"


def precision_lacks(precision: str, device: torch.device) -> str | None:
    """Why `precision` cannot act on `device`, or None where it can."""
    if precision == "tf32":
        if device.type != "cuda":
            return "TF32 is a format of NVIDIA's Tensor Cores; this device has none"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "TF32 needs an Ampere card (compute capability 8.0) or later"
    if precision == "fp16" and device.type == "cpu":
        slower = fp16_slowdown()
        if slower > 4:
            return f"on this CPU a matrix product in FP16 took {slower:.0f}x as long as in FP32"
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        return "BF16 needs an Ampere card (compute capability 8.0) or later; try fp16"
    return None


def fp16_slowdown(n: int = 192) -> float:
    """Measured time of an (n, n) matrix product in FP16 over the same in FP32, on this CPU."""

    def fastest(dtype: torch.dtype) -> float:
        a = torch.randn(n, n).to(dtype)
        times = []
        for _ in range(4):  # the first one warms up
            start = time.perf_counter()
            a @ a
            times.append(time.perf_counter() - start)
        return min(times[1:])

    return fastest(torch.float16) / fastest(torch.float32)


def compile_lacks(mode: str | None, device: torch.device) -> str | None:
    """Why torch.compile cannot act here, or None where it can."""
    if mode is None:
        return None
    if os.environ.get("TORCH_COMPILE_DISABLE", "0") not in ("", "0"):
        return "torch.compile is switched off (TORCH_COMPILE_DISABLE): what would run is eager"
    if device.type == "cpu" and compiler() is None:
        need = "Visual C++ (cl)" if sys.platform == "win32" else "g++ or clang++"
        return f"torch.compile needs a C++ compiler on a CPU and found none: install {need}"
    if device.type == "mps":
        return "torch.compile for Apple GPUs is not used here: still a prototype in PyTorch"
    return None


def compiler() -> str | None:
    """The path of the C++ compiler that torch.compile would use, or None."""
    names = ("cl",) if sys.platform == "win32" else (os.environ.get("CXX", "g++"), "g++", "clang++")
    return next(filter(None, map(shutil.which, names)), None)
