"""A GPU that a loop on the CPU could use. Nothing here imports torch, or starts CUDA."""

from __future__ import annotations

import contextlib
import os
import platform

import pynvml


def spare_card(cuda: str | None) -> str | None:
    """Return the name of a card for a torch that is built with this CUDA; None without one.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if platform.system() == "Darwin":
        return "Apple GPU" if platform.machine() == "arm64" else None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    if cuda and (first.isdigit() or first.startswith("GPU-")):
        with contextlib.suppress(Exception):  # NVMLError, or pynvml's own with an old driver
            pynvml.nvmlInit()
            by_uuid = pynvml.nvmlDeviceGetHandleByUUID
            by_index = pynvml.nvmlDeviceGetHandleByIndex
            return pynvml.nvmlDeviceGetName(
                by_index(int(first)) if first.isdigit() else by_uuid(first)
            )
    return None
