"""Describe what is here: the device, the CPU, memory, versions, and the memory a run took.

`python -m labkit.bench.machine` prints it as JSON; the bench writes the same into every run.
A value that cannot be read is None.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
from typing import Any

import psutil
import pynvml
import torch

# PyTorch's builds by CUDA's major version. A driver runs all builds of the versions it knows: CUDA
# 12 from driver 525 on, CUDA 13 from 580 on (docs.nvidia.com/deploy/cuda-compatibility).
BUILDS = {12: "cu126", 13: "cu130"}


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob; raise RuntimeError where it is not here."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        wanted = found.type if found and found.type in ("cuda", "mps") else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            why = unused_gpu() or f"it is not here, {count} CUDA devices are visible."
            raise RuntimeError(f"device={wanted!r}: {why}")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RuntimeError("device='mps' is not here: this torch sees no Apple GPU.")
    return device


def unused_gpu() -> str | None:
    """Say which NVIDIA card is here that torch cannot use, why, and the remedy; None if none is.

    NVML comes with the driver: it sees a card whatever torch was built for and whatever is hidden.
    """
    if torch.cuda.is_available():
        return None
    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        driver, runs = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return None
    built, (major, minor) = torch.version.cuda, (runs // 1000, runs % 1000 // 10)
    remedy = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
    remedy += BUILDS[min(max(major, 12), 13)]
    if built is None:
        why = "this torch is built without CUDA"
    elif int(built.split(".")[0]) > major:
        why = "its driver is too old for this torch"
        remedy += ", or install a newer driver" if major >= 12 else ""
    else:
        why, remedy = _why_cuda_does_not_start()
    if major < 12:
        remedy = f"install driver 525 or newer, then {remedy}"
    torch_is = f"torch {torch.__version__} is built for {f'CUDA {built}' if built else 'the CPU'}"
    facts = f"driver {driver} runs CUDA up to {major}.{minor}, {torch_is}"
    return f"{name} cannot be used: {why} ({facts}). Remedy: {remedy}"


def _why_cuda_does_not_start() -> tuple[str, str]:
    """Return (why, remedy) where driver and torch would fit, from torch's own words."""
    words, hidden = "torch gives no reason", os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()
    except Exception as error:
        words = str(error).strip().split("\n")[0].rstrip(".")
    if hidden is not None and "No CUDA GPUs" in words:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    container = "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    return f"CUDA does not start: {words}", f"see whether nvidia-smi works; {container}"


def card_uuid(device: torch.device | int) -> str:
    """Return the name NVML has for a CUDA device; torch gives the UUID without its kind.

    A MIG instance has a UUID of its own, and fewer metrics than a whole card.
    """
    card = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in card.name else 'GPU'}-{card.uuid}"


def use(device: torch.device) -> None:
    """Make a card the current one: streams, events and timers that name no card mean this one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def describe(device: torch.device) -> dict[str, Any]:
    """Describe the machine as seen from `device`, as JSON types."""
    cpu, ram = cpu_name(), _gib(psutil.virtual_memory().total)
    found = {
        "device": str(device), "kind": "cpu" if device.type == "cpu" else "gpu", "name": cpu,
        "memory_gib": ram, "cpu_name": cpu, "cpu_cores": cpu_cores(), "ram_gib": ram,
        "shm_gib": None, "threads": torch.get_num_threads(),
        "os": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    with contextlib.suppress(OSError):
        found["shm_gib"] = _gib(shutil.disk_usage("/dev/shm").total)
    if device.type == "mps":
        found["name"] = f"Apple GPU ({cpu})"
    if device.type == "cuda":
        card, uuid = torch.cuda.get_device_properties(device), card_uuid(device)
        found["versions"]["cuda"] = torch.version.cuda
        found |= {
            "name": card.name, "memory_gib": _gib(card.total_memory), "uuid": uuid,
            "sm_count": card.multi_processor_count, "driver": None, "pcie": None,
            "compute_capability": f"{card.major}.{card.minor}",
        }  # fmt: skip
        with contextlib.suppress(pynvml.NVMLError):  # what only the driver tells
            pynvml.nvmlInit()
            found["driver"] = pynvml.nvmlSystemGetDriverVersion()
            link = pynvml.nvmlDeviceGetHandleByUUID(uuid)  # PCIe as it is now
            found["pcie"] = (
                f"generation {pynvml.nvmlDeviceGetCurrPcieLinkGeneration(link)} "
                f"x{pynvml.nvmlDeviceGetCurrPcieLinkWidth(link)}"
            )
    return found


def use_fixed_threads() -> None:
    """Give the model a fixed quarter of the cores, so that the loader has the others."""
    torch.set_num_threads(max(1, cpu_cores() // 4))


def cpu_cores() -> int:
    """Return how many cores this process may use: the scheduler's limit, not the chip's."""
    with contextlib.suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """Return the processor's name, as the system tells it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or platform.machine()


def peak_bytes(device: torch.device) -> int:
    """Return the most the run held: allocated on a CUDA device, resident in the bench on a CPU.

    Neither is what nvidia-smi shows: that also counts the CUDA context and the allocator's cache.
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


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 2)


if __name__ == "__main__":
    use_fixed_threads()
    print(json.dumps(describe(find_device()) | {"unused_gpu": unused_gpu()}))
