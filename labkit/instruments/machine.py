"""The machine and its devices: what is here, what a run can use, and why a card is not used.

Also a bench process's threads and memory there: how they are set, and what was used.

`python -m labkit.instruments.machine` prints it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from labkit import quotas

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
INSTALL = "install the torch for this card and its driver: https://pytorch.org/get-started/locally"
# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
KEPT_BYTES = 30 * 2**20  # glibc learns from blocks of up to 32 MiB (mallopt, M_MMAP_THRESHOLD)


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob, which the kernel has found to be here."""
    here = usable()
    return torch.device({"auto": here[min(1, len(here) - 1)], "cuda": "cuda:0"}.get(wanted, wanted))


def usable() -> list[str]:
    """Return the devices that a run can use, the CPU first."""
    cards = [f"cuda:{index}" for index in range(card_count())]
    return ["cpu", *cards, *(["mps"] * torch.backends.mps.is_available())]


def card_count() -> int:
    """Return how many CUDA devices torch can start: none without a driver that fits it.

    `device_count` alone counts by NVML also those that a driver is too old for.
    """
    can_start = torch.cuda.is_available() and not torch.version.hip
    return torch.cuda.device_count() if can_start else 0


def of_rank(wanted: str, ranks: int, rank: int) -> torch.device:
    """Return a rank's device: a card of its own where each rank has one, else the CPU."""
    on_cards = wanted != "cpu" and card_count() >= ranks
    return torch.device("cuda", rank) if on_cards else torch.device("cpu")


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    if len(usable()) > 1:
        return None
    if other := torch.accelerator.current_accelerator(check_available=True):
        kind = "ROCm" if torch.version.hip else other.type.upper()
        return f"{kind} cannot be used: labkit measures on CUDA, Apple's GPU and the CPU only"
    with contextlib.suppress(pynvml.NVMLError):  # there is no driver
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        facts = f"driver {pynvml.nvmlSystemGetDriverVersion()}, torch {torch.__version__}"
        try:
            torch.cuda.init()
        except Exception as error:
            why = str(error).strip().split("\n")[0].rstrip(".")
            return f"{name} cannot be used: {why} ({facts}). Remedy: {INSTALL}"
    return None


def use(device: torch.device) -> None:
    """Make a card the current one: streams and events that name no card mean this one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def finish(device: torch.device) -> None:
    """Wait for the device; a CPU has nothing in flight."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def compile_lacks(device: torch.device) -> str | None:
    """Return what torch.compile needs on `device` and does not find; None where it finds all."""
    on_cpu = device.type == "cpu"
    compiler = os.environ.get("CXX" if on_cpu else "CC", "cl")
    usual = ("g++", "clang++") if on_cpu else ("gcc", "clang")
    if not any(map(shutil.which, (compiler, *usual))):
        return f"torch.compile needs a compiler and found none: install {' or '.join(usual)}"
    if on_cpu or (device.type == "cuda" and importlib.util.find_spec("triton")):
        return None
    return "torch.compile on a GPU is used with CUDA and Triton only: pip install triton"


def describe(device: torch.device) -> dict[str, Any]:
    """Describe the machine as seen from `device`, as JSON types."""
    found = quotas.plain_machine()
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    found["versions"] |= {"torch": torch.__version__, **cuda}
    ram_gib = _gib(quotas.ram_bytes())
    found |= {
        "device": str(device),
        "kind": "cpu" if device.type == "cpu" else "gpu",
        "memory_gib": ram_gib,
        "ram_gib": ram_gib,
        "threads": torch.get_num_threads(),
        "compile_lacks": compile_lacks(device),
    }
    if device.type == "cuda" and not torch.version.hip:
        card = torch.cuda.get_device_properties(device)
        found |= {
            "name": card.name,
            "memory_gib": _gib(card.total_memory),
            # NVML's name of it, or of a MIG instance: torch leaves out its kind
            "uuid": f"{'MIG' if ' MIG ' in card.name else 'GPU'}-{card.uuid}",
            "sm_count": card.multi_processor_count,
            "compute_capability": f"{card.major}.{card.minor}",
        }
    elif device.type != "cpu":  # of another maker, or another kind: of a loop that is watched
        found["name"] = "ROCm" if device.type == "cuda" else device.type.upper()
    return found


def cache_bytes(device: torch.device) -> int:
    """Return the size of the largest data cache in bytes; 0 where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    paths = CACHES.glob("index*/size") if device.type == "cpu" else ()
    return max((int(path.read_text().rstrip("K\n")) for path in paths), default=0) * 2**10


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 2)


# -- the threads and memory of a bench process ----------------------------------------------------


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))


if __name__ == "__main__":
    use_fixed_threads()
    found = describe(find_device())
    found |= {"unused_gpu": unused_gpu(), "devices": usable()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # without torch's teardown, which takes a third as long as its import
