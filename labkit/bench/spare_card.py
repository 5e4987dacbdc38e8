"""A GPU that a loop on the CPU could use. Nothing here imports torch, or starts CUDA."""

from __future__ import annotations

import contextlib
import os
import platform

import pynvml

# Compute capabilities: builds for CUDA 13 begin with Turing, for 12.8 with Volta; those for 12.6
# end with Hopper (pytorch.org/blog/pytorch-2-8, CUDA 13.0's release notes)
VOLTA, TURING, BLACKWELL = (7, 0), (7, 5), (10, 0)
OLDEST = (5, 0)  # Maxwell: what came before has no build of PyTorch 2


def spare_card(cuda: str | None) -> str | None:
    """Return the name of a card that a torch built with this CUDA can use; None without one.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if platform.system() == "Darwin":
        return "Apple GPU" if platform.machine() == "arm64" else None
    with contextlib.suppress(Exception):  # NVMLError, or pynvml's own with an old driver
        version = tuple(map(int, str(cuda).split(".")[:2]))
        pynvml.nvmlInit()
        card = first_visible(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
        newest = pynvml.nvmlSystemGetCudaDriverVersion() // 1000
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(card))
        if version[0] <= newest and has_kernels(version, capability):
            return pynvml.nvmlDeviceGetName(card)
    return None


def first_visible(devices: str) -> object:
    """Return the first card of CUDA_VISIBLE_DEVICES; raise where that is none, or a part of one."""
    first = devices.partition(",")[0].strip()
    if first.startswith("GPU-"):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    if not first.isdigit():
        raise ValueError(f"no whole card is visible: CUDA_VISIBLE_DEVICES={devices!r}")
    return pynvml.nvmlDeviceGetHandleByIndex(int(first))


def has_kernels(cuda: tuple[int, ...], capability: tuple[int, ...]) -> bool:
    """Return whether PyTorch's build with this CUDA computes on a card."""
    oldest = OLDEST
    if cuda >= (12, 8):
        oldest = TURING if cuda >= (13, 0) else VOLTA
    return capability >= oldest and (capability < BLACKWELL or cuda >= (12, 8))
