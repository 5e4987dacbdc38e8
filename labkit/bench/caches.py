"""How large the device's caches are, and arrays large enough to defeat them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
UNKNOWN_CACHE = 64 * 2**20  # bytes: a size to stay clear of where the cache's is not told
# An array is so many times the last-level cache; an operation touches two or three. A GPU's L2 does
# not drop what was used longest ago (Mei and Chu, "Dissecting GPU Memory Hierarchy through
# Microbenchmarking", IEEE TPDS 28(1), 2017): a part of an array of twice its size stays
PAST_ON_CPU, PAST_ON_GPU = 2, 8
SHARE_OF_MEMORY = 1 / 12  # of what is free, at most, for one array
BLOCK = 2**20  # random numbers drawn; a large array repeats them


def cache_bytes(device: torch.device) -> dict[str, int]:
    """Return the size of each cache level in bytes, smallest first; {} where nobody tells.

    On a CPU the data caches of its first core ("L1d", "L2", "L3"); on a CUDA device "L2".
    """
    if device.type == "cuda":
        return {"L2": torch.cuda.get_device_properties(device).L2_cache_size}
    found = {}
    if device.type == "cpu":
        for folder in sorted(CACHES.glob("index*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                kind = (folder / "type").read_text().strip()
                level = (folder / "level").read_text().strip()
                size = (folder / "size").read_text().strip()
                if kind != "Instruction":
                    name = f"L{level}d" if kind == "Data" else f"L{level}"
                    found[name] = int(size[:-1]) * UNITS[size[-1]]
    return found


def past_cache_elements(device: torch.device, size_bytes: int = 4) -> int:
    """Return how many numbers of `size_bytes` make an array well past the last-level cache.

    `past_cache` times the largest cache (of 64 MiB where its size is unknown), but never more than
    a twelfth of the memory that is free; `is_past_cache` says whether that was enough.
    """
    largest = max(cache_bytes(device).values(), default=UNKNOWN_CACHE)
    wanted = max(past_cache(device) * largest, 2**26)
    elements = int(min(wanted, SHARE_OF_MEMORY * free_bytes(device))) // size_bytes
    return max(BLOCK, elements // BLOCK * BLOCK)


def is_past_cache(total_bytes: int, device: torch.device) -> bool | None:
    """Whether so many bytes are well past the largest cache; None where its size is unknown.

    `total_bytes` counts every array that an operation touches.
    """
    largest = max(cache_bytes(device).values(), default=None)
    return None if largest is None else total_bytes >= past_cache(device) * largest


def past_cache(device: torch.device) -> int:
    """How many times the last-level cache is well past it."""
    return PAST_ON_CPU if device.type == "cpu" else PAST_ON_GPU


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on the device; of a CPU, the RAM that is available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def random_array(elements: int, device: torch.device, dtype: torch.dtype = torch.float32):
    """Return `elements` random numbers, (elements,), each page of them really there.

    A million are drawn and repeated: drawing a gigabyte takes longer than measuring with it.
    """
    block = torch.rand(min(elements, BLOCK), device=device).to(dtype)
    return block.repeat(-(-elements // BLOCK))[:elements].contiguous()
