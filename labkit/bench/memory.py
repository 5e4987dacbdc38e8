"""How much memory a run took."""

from __future__ import annotations

import sys

import torch


def peak_bytes(device: torch.device) -> int | None:
    """The most the run held: allocated on a CUDA device, resident in the bench process on a CPU.

    Neither is what nvidia-smi shows: that also counts the CUDA context and the allocator's cache.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
