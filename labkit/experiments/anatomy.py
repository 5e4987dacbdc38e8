"""What the device is made of, as far as it tells: counted, not timed."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from labkit.bench.caches import cache_bytes
from labkit.bench.machine import card_uuid, cpu_cores
from labkit.bench.workbench import Workbench

# Fact: the name torch has for it. Versions of torch differ in what they tell.
CARD = {
    "sms": "multi_processor_count",
    "threads_per_sm": "max_threads_per_multi_processor",
    "warp": "warp_size",
    "shared_bytes_per_sm": "shared_memory_per_multiprocessor",
    "registers_per_sm": "regs_per_multiprocessor",
    "bus_bits": "memory_bus_width",
}


def measure(job: Any, bench: Workbench) -> None:
    """Write the device's facts as values of one point, "device"; what is not told is None."""
    if bench.device.type == "cuda":
        facts = of_card(bench.device)
    elif bench.device.type == "cpu":
        facts = of_cpu()
    else:
        facts = {}
        bench.skip("device", f"torch tells nothing about the inside of {bench.device.type}")
    caches = cache_bytes(bench.device)
    bench.write("device", values={**facts, "caches": caches}, kind=bench.device.type)


def of_card(device: torch.device) -> dict[str, Any]:
    """SMs, threads, warps, memory and the bus to the host, of a CUDA device."""
    card = torch.cuda.get_device_properties(device)
    facts = {name: getattr(card, known, None) for name, known in CARD.items()}
    if facts["threads_per_sm"] and facts["warp"]:
        facts["warps_per_sm"] = facts["threads_per_sm"] // facts["warp"]
    return facts | pcie(card_uuid(device))


def pcie(uuid: str) -> dict[str, Any]:
    """What the card's link to the host can do at most; an idle card may run it slower."""
    import pynvml

    facts: dict[str, Any] = {"pcie_generation": None, "pcie_width": None}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        facts["pcie_generation"] = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(card)
        facts["pcie_width"] = pynvml.nvmlDeviceGetMaxPcieLinkWidth(card)
    return facts


def of_cpu() -> dict[str, Any]:
    """Cores, and the widest vectors that this build of torch uses on them."""
    capability = None
    with contextlib.suppress(AttributeError):
        capability = torch.backends.cpu.get_cpu_capability()  # "AVX512", "AVX2", "DEFAULT"
    return {"cores": cpu_cores(), "threads": torch.get_num_threads(), "vectors": capability}
