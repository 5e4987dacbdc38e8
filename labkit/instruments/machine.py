"""The machine and its devices: what is here, what a run can use, and why a card is not used.

`python -m labkit.instruments.machine` prints it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pynvml
import torch

from labkit import quotas
from labkit.instruments.host import plain_machine
from labkit.instruments.resources import use_fixed_threads

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
INSTALL = "install the torch for this card and its driver: https://pytorch.org/get-started/locally"


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
        why = "torch gives no reason"
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
    found = plain_machine()
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


if __name__ == "__main__":
    use_fixed_threads()
    found = describe(find_device())
    found |= {"unused_gpu": unused_gpu(), "devices": usable()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # without torch's teardown, which takes a third as long as its import
