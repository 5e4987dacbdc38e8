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
HOPELESS = 12.0  # a format that is so many times slower than FP32 there is not measured


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
    """Return why products in this format are not measured on `device`; None if they can be.

    Some formats are there and hopelessly slow (FP16 on most CPUs), so a small product is timed
    first, against the same in FP32.
    """
    if name == "tf32":
        if device.type != "cuda":
            return "TF32 is a mode of NVIDIA's Tensor Cores; this device has none"
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"TF32 needs compute capability 8.0 (Ampere); this card has {major}.{minor}"
    try:
        ratio = probe_s(name, device) / probe_s("fp32", device)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"not here: {str(error).splitlines()[0][:120]}"
    if ratio > HOPELESS:
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
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - started)
    return min(times[1:])
