"""A GPU that a loop on the CPU could use. Nothing here imports torch, or starts CUDA."""

from __future__ import annotations

import contextlib
import os
import platform

import pynvml

# Compute capabilities: builds for CUDA 13 begin with Turing, those for CUDA 12.6 end with Hopper
# (pytorch.org/blog/pytorch-2-8, CUDA 13.0's release notes)
TURING, BLACKWELL = (7, 5), (10, 0)
OLDEST = (5, 0)  # Maxwell: what came before has no build of PyTorch 2


def spare_card(cuda: str | None) -> str | None:
    """Return the name of a card that a torch built with this CUDA can use; None without one.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if platform.system() == "Darwin":
        return "Apple's GPU" if platform.machine() == "arm64" else None
    if not cuda or os.environ.get("CUDA_VISIBLE_DEVICES", "0")[:1] in ("", "-"):
        return None
    major, minor = map(int, cuda.split(".")[:2])
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        newest = pynvml.nvmlSystemGetCudaDriverVersion() // 1000
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(card))
        if major <= newest and has_kernels((major, minor), capability):
            return pynvml.nvmlDeviceGetName(card)
    return None


def has_kernels(cuda: tuple[int, int], capability: tuple[int, ...]) -> bool:
    """Return whether PyTorch's build with this CUDA computes on a card."""
    oldest = TURING if cuda >= (13, 0) else OLDEST
    return capability >= oldest and (capability < BLACKWELL or cuda >= (12, 8))
