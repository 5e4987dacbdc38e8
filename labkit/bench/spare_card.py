"""A GPU that a loop on the CPU could use. Nothing here imports torch, or starts CUDA."""

from __future__ import annotations

import contextlib
import os
import platform
import re

import pynvml

CUDA_BUILD = re.compile(r"\+cu(\d+)")  # of torch's version, as "2.11.0+cu130"
# Compute capabilities: builds for CUDA 13 begin with Turing, those for CUDA 12.6 end with Hopper
# (pytorch.org/blog/pytorch-2-8, CUDA 13.0's release notes)
TURING, BLACKWELL = (7, 5), (10, 0)
OLDEST = (5, 0)  # Maxwell: what came before has no build of PyTorch 2


def spare_card(torch_version: str) -> str | None:
    """Return the name of a card that this version of torch can use; None where there is none.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if platform.system() == "Darwin":
        return "Apple's GPU" if platform.machine() == "arm64" else None
    build = CUDA_BUILD.search(torch_version)
    if build is None or os.environ.get("CUDA_VISIBLE_DEVICES", "0")[:1] in ("", "-"):
        return None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        newest = pynvml.nvmlSystemGetCudaDriverVersion() // 1000
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(card)
        if int(build[1]) // 10 <= newest and has_kernels(int(build[1]), tuple(capability)):
            return pynvml.nvmlDeviceGetName(card)
    return None


def has_kernels(build: int, capability: tuple[int, ...]) -> bool:
    """Return whether PyTorch's build for a CUDA, as 130 for 13.0, computes on a card."""
    oldest = TURING if build >= 130 else OLDEST
    return capability >= oldest and (capability < BLACKWELL or build >= 128)
