"""Describe what is here: `python -m labkit.instruments.machine`."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pynvml
import torch

from labkit import quotas
from labkit.instruments import devices
from labkit.instruments.host import plain_machine
from labkit.instruments.resources import use_fixed_threads

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux


def describe(device: torch.device) -> dict[str, Any]:
    """Describe the machine as seen from `device`, as JSON types."""
    found = plain_machine()
    found["versions"] |= {"torch": torch.__version__}
    if torch.version.cuda:
        found["versions"] |= {"cuda": torch.version.cuda}
    ram_gib = _gib(quotas.ram_bytes())
    found |= {
        "device": str(device),
        "kind": "cpu" if device.type == "cpu" else "gpu",
        "memory_gib": ram_gib,
        "ram_gib": ram_gib,
        "threads": torch.get_num_threads(),
    }
    kind = devices.kind_of(device)
    if kind not in devices.MEASURED:  # of a loop that is watched
        return found | {"name": kind}
    if kind == "MPS":
        found["name"] = f"Apple GPU ({found['cpu_name']})"
    if kind == "CUDA":
        found |= _describe_card(device)
    return found | {"compile_lacks": devices.compile_lacks(device)}


def _describe_card(device: torch.device) -> dict[str, Any]:
    """Return what `describe` adds, or says otherwise, of a CUDA device."""
    card = torch.cuda.get_device_properties(device)
    found = {
        "name": card.name,
        "memory_gib": _gib(card.total_memory),
        "uuid": devices.card_uuid(device),
        "sm_count": card.multi_processor_count,
        "compute_capability": f"{card.major}.{card.minor}",
    }
    with contextlib.suppress(pynvml.NVMLError):  # what only the driver tells
        pynvml.nvmlInit()
        found["driver"] = pynvml.nvmlSystemGetDriverVersion()
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
    found = describe(devices.find_device())
    found |= {"unused_gpu": devices.unused_gpu(), "devices": devices.usable()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # without torch's teardown, which takes a third as long as its import
