"""Describe what is here (`python -m labkit.bench.machine`), its memory and when that ran out."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from labkit import quotas
from labkit.bench import devices
from labkit.bench.compiling import compile_lacks
from labkit.bench.gpu_meter import TEGRA
from labkit.bench.host import cpu_name, plain_machine

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
NO_ENGINE = "unable to find an engine"  # cuDNN: no memory for any, or none made for this card
KEPT_BYTES = 30 * 2**20  # glibc learns from blocks of up to 32 MiB (mallopt, M_MMAP_THRESHOLD)
FULL_SHARE = 0.1  # of a card's memory, free: below that it is the memory


def describe(device: torch.device) -> dict[str, Any]:
    """Describe the machine as seen from `device`, as JSON types."""
    ram_gib = _gib(quotas.ram_bytes())
    found = plain_machine(cpu_name())
    found["versions"]["torch"] = torch.__version__
    found |= {
        "device": str(device),
        "kind": "cpu" if device.type == "cpu" else "gpu",
        "memory_gib": ram_gib,
        "ram_gib": ram_gib,
        "shm_gib": None,
        "threads": torch.get_num_threads(),
    }
    with contextlib.suppress(OSError):
        found["shm_gib"] = _gib(shutil.disk_usage("/dev/shm").total)
    if device.type == "mps":
        found["name"] = f"Apple GPU ({found['cpu_name']})"
    elif device.type not in ("cpu", *devices.KNOWN):  # of a loop that is watched
        found["name"] = devices.name_of_other(device)
    if device.type == "cuda":
        found["versions"]["cuda"] = torch.version.cuda
        if torch.version.hip:
            found["versions"]["hip"] = torch.version.hip
        found |= _describe_card(device)
    if device.type in ("cpu", *devices.KNOWN):
        found["compile_lacks"] = compile_lacks(device)
    return found


def _describe_card(device: torch.device) -> dict[str, Any]:
    """Return what `describe` adds, or says otherwise, of a CUDA device."""
    card = torch.cuda.get_device_properties(device)
    uuid = devices.card_uuid(device)
    found = {
        "name": card.name,
        "memory_gib": _gib(card.total_memory),
        "uuid": uuid,
        "sm_count": card.multi_processor_count,
        "driver": None,
        "pcie": None,
        "compute_capability": f"{card.major}.{card.minor}",
    }
    if torch.version.hip:  # AMD's numbers are not NVIDIA's: 9.4 there is not after Ampere
        found["compute_capability"] = None
    if TEGRA.exists():
        found["name"] = f"{card.name} (Jetson, its memory is the CPU's)"
        return found
    with contextlib.suppress(pynvml.NVMLError):  # what only the driver tells
        pynvml.nvmlInit()
        found["driver"] = pynvml.nvmlSystemGetDriverVersion()
        found["pcie"] = pcie_link(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    return found


def pcie_link(card: object) -> str:
    """Return a card's PCIe link as it is now and, where an idle card has slowed it, at most."""
    generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(card)
    now = f"generation {generation} x{pynvml.nvmlDeviceGetCurrPcieLinkWidth(card)}"
    with contextlib.suppress(pynvml.NVMLError):
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(card)
        most = f"generation {generation} x{pynvml.nvmlDeviceGetMaxPcieLinkWidth(card)}"
        return now if now == most else f"{now} now, at most {most}"
    return now


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


def cache_bytes(device: torch.device) -> int:
    """Return the size of the largest data cache in bytes; 0 where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    sizes = [0]
    for path in CACHES.glob("index*/size") if device.type == "cpu" else ():
        with contextlib.suppress(OSError, ValueError, KeyError):
            size = path.read_text().strip()  # "32K"
            sizes.append(int(size[:-1]) * UNITS[size[-1]])
    return max(sizes)


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 2)


def peak_bytes(device: torch.device) -> int:
    """Return the most the run held: allocated on a CUDA device, resident in the bench on a CPU.

    Apple's GPU tells no peak: there it is what its driver holds now, which seldom shrinks.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource
    except ImportError:  # Windows
        memory = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def refused(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    if NO_ENGINE in str(error).lower():
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 1)
        return free < FULL_SHARE * total
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))


if __name__ == "__main__":
    use_fixed_threads()
    print(json.dumps(describe(devices.find_device()) | devices.unused_facts()))
