"""The number formats a matrix product can be in, and which of them are worth running here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

# name: (dtype of the tensors, float32_matmul_precision)
FORMATS = {
    "fp64": (torch.float64, "highest"),
    "fp32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "fp16": (torch.float16, "highest"),
    "bf16": (torch.bfloat16, "highest"),
}
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}  # of one number in memory
PROBE = 256  # the probe is a product of (256, 256) matrices: 34 MFLOP
HOPELESS = 12.0  # a format that takes a CPU so many times as long as FP32 is not worth running


@contextlib.contextmanager
def using(name: str) -> Iterator[torch.dtype]:
    """Give the dtype of a format, with the global switch for TF32 set to match while it lasts."""
    dtype, precision = FORMATS[name]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield dtype
    finally:
        torch.set_float32_matmul_precision(before)


def why_not(name: str, device: torch.device) -> str | None:
    """Return why work in this format makes no sense on `device`; None where it does.

    Some formats are there and hopelessly slow (FP16 on most CPUs), so on a CPU a small product is
    timed against the same in FP32. On a GPU that would compare launches; a slow format there
    (FP64 on a consumer's card) gets a smaller product (see `labkit.bench.sizes`).
    """
    if name == "tf32" and device.type != "cuda":
        return "TF32 is a mode of NVIDIA's Tensor Cores; this device has none"
    if name in ("tf32", "bf16") and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            here = f"this card has {major}.{minor}"
            return f"{name.upper()} needs compute capability 8.0 (Ampere); {here}"
    try:
        ratio = probe_s(name, device) / probe_s("fp32", device)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"not here: {str(error).splitlines()[0][:120]}"
    if device.type == "cpu" and ratio > HOPELESS:
        return f"no fast path here: a probe of {PROBE}x{PROBE} took {ratio:.0f}x as long as FP32"
    return None


def probe_s(name: str, device: torch.device) -> float:
    """Time one small product, s: the fastest of three, after one that warms up."""
    with using(name) as dtype:
        a = torch.rand(PROBE, PROBE, device=device).to(dtype)
        b = torch.rand(PROBE, PROBE, device=device).to(dtype)
        times = []
        for _ in range(4):
            started = time.perf_counter()
            a @ b
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            times.append(time.perf_counter() - started)
    return min(times[1:])
