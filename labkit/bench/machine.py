"""Describe what is here (`python -m labkit.bench.machine`), and the memory a run may take."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pynvml
import torch

from labkit.bench import models

# PyTorch's builds by CUDA's major version. A driver runs all builds of the versions it knows: CUDA
# 12 from driver 525 on, CUDA 13 from 580 on (docs.nvidia.com/deploy/cuda-compatibility).
BUILDS = {12: "cu126", 13: "cu130"}
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CONTAINER = "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"


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
    """Say which card the driver has and torch cannot use, why, and the remedy; None if none."""
    if torch.cuda.is_available():
        return None
    try:
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        driver, runs = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return None
    built, major, minor = torch.version.cuda, runs // 1000, runs % 1000 // 10
    remedy = INSTALL + BUILDS[min(max(major, 12), 13)]
    if built is None:
        why = "this torch is built without CUDA"
    elif int(built.split(".")[0]) > major:
        why = "its driver is too old for this torch"
        remedy += ", or install a newer driver" if major >= 12 else ""
    else:  # they would fit: in torch's own words
        words, hidden = "torch gives no reason", os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            torch.cuda.init()
        except Exception as error:
            words = str(error).strip().split("\n")[0].rstrip(".")
        why, remedy = f"CUDA does not start: {words}", f"see whether nvidia-smi works; {CONTAINER}"
        if hidden is not None and "No CUDA GPUs" in words:
            why, remedy = f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    if major < 12:
        remedy = f"install driver 525 or newer, then {remedy}"
    torch_is = f"torch {torch.__version__} is built for {f'CUDA {built}' if built else 'the CPU'}"
    facts = f"driver {driver} runs CUDA up to {major}.{minor}, {torch_is}"
    return f"{name} cannot be used: {why} ({facts}). Remedy: {remedy}"


def card_uuid(device: torch.device | int) -> str:
    """Return NVML's name of a CUDA device, or of a MIG instance: torch leaves out its kind."""
    card = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in card.name else 'GPU'}-{card.uuid}"


def use(device: torch.device) -> None:
    """Make a card the current one: streams and events that name no card mean this one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def finish(device: torch.device) -> None:
    """Wait for the device; a CPU has nothing in flight."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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


def cache_bytes(device: torch.device) -> dict[str, int]:
    """Return each data cache's size in bytes by name ("L1d", "L2"); {} where nobody tells."""
    if device.type == "cuda":
        return {"L2": torch.cuda.get_device_properties(device).L2_cache_size}
    found = {}
    for folder in sorted(CACHES.glob("index*")) if device.type == "cpu" else ():
        with contextlib.suppress(OSError, ValueError, KeyError):
            kind, level, size = (
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            )
            if kind != "Instruction":
                name = f"L{level}d" if kind == "Data" else f"L{level}"
                found[name] = int(size[:-1]) * UNITS[size[-1]]
    return found


def _gib(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 2)


def peak_bytes(device: torch.device) -> int:
    """Return the most the run held: allocated on a CUDA device, resident in the bench on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED|unable to find an engine",
    re.IGNORECASE,
)


def refused(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))


def in_words(error: BaseException) -> str:
    """Return the error's first line, without where in PyTorch's sources it was raised."""
    first = str(error).partition("\n")[0].removesuffix("Error code 12 (Cannot allocate memory)")
    said = re.sub(r"^\[enforce fail at [^\]]*\] err == 0\. ", "", first).strip()
    return said[:200] or type(error).__name__


class Limit(NamedTuple):
    """A limit in words (`how`); `used` returns the most bytes taken since, `lift` ends it."""

    how: str
    used: Callable[[], int]
    lift: Callable[[], None]
    most: int | None = None  # bytes, where nothing refuses what goes beyond

    def check(self) -> None:
        """Raise MemoryError where the limit was passed and nothing refused it."""
        if self.most is not None and (used := self.used()) > self.most:
            raise MemoryError(f"{used:,} bytes used: over the limit of {self.most:,}")


def impose(device: torch.device, limit_bytes: int) -> Limit:
    """Limit what this process may take from now on: "does it fit?" is then nobody else's harm."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the process used before is not its training's
        torch.cuda.reset_peak_memory_stats(device)
        total = torch.cuda.get_device_properties(device).total_memory
        allow = torch.cuda.set_per_process_memory_fraction
        allow(min(1.0, limit_bytes / total), device)
        return Limit(
            "memory of PyTorch's caching allocator on the card",  # the CUDA context is not in it
            lambda: torch.cuda.max_memory_reserved(device),
            lambda: allow(1.0, device),
        )
    # The threads and pools that PyTorch makes on first use are none of the training's
    torch.randn(1 << 20).exp_()
    conv, head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(72, 4)
    model = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(8), torch.nn.Flatten(), head)
    model(torch.randn(8, 3, 5, 5)).sum().backward()
    models.AdamW(model.parameters()).step()
    if sys.platform != "linux":
        how = "resident memory beyond PyTorch's own, looked at after each step"
        before = peak_bytes(device)
        return Limit(how, lambda: peak_bytes(device) - before, lambda: None, limit_bytes)
    import resource

    # RLIMIT_AS would count gigabytes that PyTorch reserves untouched
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts over
    resident, old = _status_bytes("VmRSS"), resource.getrlimit(resource.RLIMIT_DATA)
    wanted, hard = _status_bytes("VmData") + limit_bytes, old[1]
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return Limit(
        "private memory of the training process beyond PyTorch's own (RLIMIT_DATA)",
        lambda: max(0, _status_bytes("VmHWM") - resident),
        lambda: resource.setrlimit(resource.RLIMIT_DATA, old),
    )


def default_limit_bytes(device: torch.device) -> int:
    """What is free on the card; on a CPU a stated 0.5 GiB, since filling its RAM harms others."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**29


def _status_bytes(name: str) -> int:
    """Read a line of /proc/self/status, bytes."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


if __name__ == "__main__":
    use_fixed_threads()
    print(json.dumps(describe(find_device()) | {"unused_gpu": unused_gpu()}))
