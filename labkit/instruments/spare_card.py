"""A GPU that a loop on the CPU could use. Nothing here imports torch, or starts CUDA."""

from __future__ import annotations

import contextlib
import os

import pynvml


def spare_card(cuda: str | None) -> str | None:
    """Return the name of a card for a torch that is built with this CUDA; None without one.

    A card that CUDA_VISIBLE_DEVICES hides is none.
    """
    if cuda and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        with contextlib.suppress(Exception):  # NVMLError, or pynvml's own with an old driver
            pynvml.nvmlInit()
            return pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    return None
