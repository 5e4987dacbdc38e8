"""The bench process's threads and memory: how they are set, what was used, and what ran out."""

from __future__ import annotations

import gc
import re
import sys

import psutil
import torch

from labkit import quotas

# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
KEPT_BYTES = 30 * 2**20  # glibc learns from blocks of up to 32 MiB (mallopt, M_MMAP_THRESHOLD)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, as it does once a script has freed something large.

    Until then glibc gives the free end of the heap back to the system, and each step gets it anew,
    page by page: 1200 page faults, and up to a third of a small model's step on a CPU.
    """
    bytearray(KEPT_BYTES)


def collect_garbage() -> None:
    """Turn Python's garbage collector on again, with all objects so far among the oldest.

    Those of torch would else be new to it: its first collections would look at all of them, 80 ms
    each, in the training and again in each worker. A script's have done that during its imports.
    """
    gc.freeze()
    gc.unfreeze()  # into the oldest generation; frozen for good, none would cost what it must
    gc.enable()


def use_fixed_threads() -> None:
    """Give the model a fixed quarter of the cores, so that the loader has the others."""
    torch.set_num_threads(max(1, quotas.cpu_cores().count // 4))


def peak_bytes(device: torch.device) -> int:
    """Return the most the run held: allocated on a CUDA device, resident in the bench on a CPU.

    Apple's GPU tells no peak: there it is what its driver holds now, which seldom shrinks.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def refused(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))
