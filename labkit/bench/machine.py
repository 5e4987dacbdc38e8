"""Describe what is here (`python -m labkit.bench.machine`), and why a GPU cannot be used."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from labkit import quotas
from labkit.bench.compiling import compile_lacks
from labkit.bench.gpu_meter import TEGRA
from labkit.bench.user_loop import plain_machine

# PyTorch's builds by CUDA's major version. A driver runs all builds of the versions it knows: CUDA
# 12 from driver 525 on, CUDA 13 from 580 on (docs.nvidia.com/deploy/cuda-compatibility).
BUILDS = {12: "cu126", 13: "cu130"}
# Compute capabilities: builds for CUDA 13 begin with Turing, those for CUDA 12.6 end with Hopper
# (pytorch.org/blog/pytorch-2-8, CUDA 13.0's release notes)
TURING, BLACKWELL = (7, 5), (10, 0)
OLDEST = (5, 0)  # Maxwell: what came before has no build of PyTorch 2
KNOWN = ("cuda", "mps")  # torch's names of the accelerators that labkit measures on; ROCm's is CUDA
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
FOR_JETSON = (
    "install NVIDIA's PyTorch for Jetson (docs.nvidia.com/deeplearning/frameworks/"
    "install-pytorch-jetson-platform)"
)
IDLE_MEMORY = 0.05  # of a card's: what a driver and a desktop hold
# And a CUDA context of ours, where a container hides which processes are ours
IDLE_BYTES = 2**30
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux
CPU_INFO = Path("/proc/cpuinfo")
BRAND = "machdep.cpu.brand_string"  # macOS
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CONTAINER = "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob; raise RuntimeError where it is not here."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        wanted = found.type if found and found.type in KNOWN else "cpu"
        if wanted == "cuda":
            usable = usable_cards()
            wanted = f"cuda:{least_busy(usable)}" if usable else "cpu"
    device = torch.device(wanted)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = device.index or 0
        if index >= count:
            why = unused_gpu() or f"it is not here, {count} CUDA devices are visible."
            raise RuntimeError(f"device={wanted!r}: {why}")
        if why := lacks_kernels(index):
            raise RuntimeError(f"device={wanted!r}: {why}")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise RuntimeError("device='mps' is not here: this torch sees no Apple GPU.")
    return device


def usable_cards() -> list[int]:
    """Return the CUDA devices for whose architecture this torch has kernels."""
    return [index for index in range(torch.cuda.device_count()) if not lacks_kernels(index)]


def lacks_kernels(index: int) -> str | None:
    """Say why this torch cannot compute on a card that it sees, and the remedy; None if it can.

    Without this every operation ends in "no kernel image is available for execution".
    """
    built = torch.cuda.get_arch_list()
    if torch.version.hip:
        return _lacks_amd_kernels(index, built)
    known = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in built]
    if not any(known):  # of another maker, or a build that does not tell
        return None
    card = torch.cuda.get_device_capability(index)
    for match in known:
        if match is None:
            continue
        kind = match[1]
        kernel = (int(match[2]), int(match[3]))
        # a binary runs on later cards of its generation, intermediate code (PTX) on all later ones;
        # between a Jetson and other cards no binary does (CUDA's programming guide)
        as_binary = kernel == card if TEGRA.exists() else kernel[0] == card[0]
        if kernel <= card and (kind == "compute" or as_binary):
            return None
    name = torch.cuda.get_device_name(index)
    why = f"this torch has no kernels for its compute capability {card[0]}.{card[1]}"
    facts = f"torch {torch.__version__} is built for {', '.join(built)}"
    remedy = FOR_JETSON if TEGRA.exists() else build_for(card, _cuda_of_driver())
    return f"{name} cannot be used: {why} ({facts}). Remedy: {remedy}"


def _lacks_amd_kernels(index: int, built: list[str]) -> str | None:
    """Say why a torch for ROCm cannot compute on a card; None if it can, or does not tell.

    Without this every operation ends in "invalid device function".
    """
    card = torch.cuda.get_device_properties(index)
    kind = card.gcnArchName.partition(":")[0]  # "gfx90a" of "gfx90a:sramecc+:xnack-"
    kinds = {each.partition(":")[0] for each in built}
    if not built or kind in kinds or any("generic" in each for each in built):
        return None
    why = f"this torch has no kernels for {kind} (it is built for {', '.join(built)})"
    remedy = "HSA_OVERRIDE_GFX_VERSION, where ROCm has a card of the same generation"
    return f"{card.name} cannot be used: {why}. Remedy: {remedy}"


def build_for(card: tuple[int, int], driver_major: int) -> str:
    """Return how to install a torch for a card's compute capability and the driver's CUDA."""
    if card < OLDEST:
        return "none: PyTorch 2 has no build for a card this old"
    build = BUILDS[min(max(driver_major, 12), 13)]
    if card < TURING:
        build = BUILDS[12]
    elif card >= BLACKWELL and build == BUILDS[12]:
        build = "cu128"
    return INSTALL + build


def _cuda_of_driver() -> int:
    """Return the newest major version of CUDA that the driver runs; 13 where it does not tell."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetCudaDriverVersion() // 1000
    return 13


def least_busy(cards: list[int]) -> int:
    """Return the card on which others compute least, as NVML tells; the first of equals."""
    if len(cards) == 1:
        return cards[0]
    return min(cards, key=lambda index: (busy_with_others(index), index))


def busy_with_others(index: int) -> float:
    """Return a card's utilization, 0 to 1, where somebody else holds memory there; 0 if unknown.

    Our own last run may still be in the driver's window, but its memory is free.
    """
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(card_uuid(index))
        memory = pynvml.nvmlDeviceGetMemoryInfo(card)
        # pynvml's structures have no types
        held = float(memory.used) - _held_by_us(card)
        if held > max(IDLE_MEMORY * float(memory.total), IDLE_BYTES):
            return float(pynvml.nvmlDeviceGetUtilizationRates(card).gpu) / 100
    return 0.0


def _held_by_us(card: object) -> int:
    """Return the bytes on a card of this process and of those it comes from, such as a kernel."""
    this = psutil.Process()
    ours = {process.pid for process in (this, *this.parents())}
    with contextlib.suppress(pynvml.NVMLError):
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        return sum(each.usedGpuMemory or 0 for each in running if each.pid in ours)
    return 0


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and other.type not in KNOWN:
        name = name_of_other(other)
        why = "labkit measures on CUDA, ROCm, Apple's GPU and the CPU only"
        return f"{name} cannot be used: {why}. Remedy: none here; the numbers are the CPU's"
    if torch.cuda.is_available():
        lacking = [lacks_kernels(index) for index in range(torch.cuda.device_count())]
        return lacking[0] if lacking and all(lacking) else None
    if TEGRA.exists():
        why = f"torch {torch.__version__} sees no CUDA device"
        return f"The Jetson's GPU cannot be used: {why}. Remedy: {FOR_JETSON}"
    return _why_torch_sees_no_card()


def _why_torch_sees_no_card() -> str | None:
    """Say why torch has no CUDA device where the driver has one; None without a driver."""
    try:
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(card)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(card)
        driver = pynvml.nvmlSystemGetDriverVersion()
        newest = pynvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return None
    built = torch.version.cuda
    driver_major = newest // 1000
    remedy = build_for((major, minor), driver_major)
    if built is None:
        why = "this torch is built without CUDA"
    elif int(built.split(".")[0]) > driver_major:
        why = "its driver is too old for this torch"
        if driver_major >= 12:
            remedy += ", or install a newer driver"
    else:
        why, remedy = _why_cuda_does_not_start()
    if driver_major < 12:
        remedy = f"install driver 525 or newer, then {remedy}"
    torch_is = f"torch {torch.__version__} is built for {f'CUDA {built}' if built else 'the CPU'}"
    facts = f"driver {driver} runs CUDA up to {driver_major}.{newest % 1000 // 10}, {torch_is}"
    return f"{name} cannot be used: {why} ({facts}). Remedy: {remedy}"


def name_of_other(device: torch.device) -> str:
    """Return the name of an accelerator that labkit does not know, such as "Arc (XPU)"."""
    kind = device.type.upper()
    with contextlib.suppress(Exception):  # whatever its module lacks, it has a type
        return f"{torch.get_device_module(device).get_device_name()} ({kind})"
    return kind


def _why_cuda_does_not_start() -> tuple[str, str]:
    """Return why, in torch's own words, and the remedy: driver and torch would fit."""
    words = "torch gives no reason"
    try:
        torch.cuda.init()
    except Exception as error:
        words = str(error).strip().split("\n")[0].rstrip(".")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and "No CUDA GPUs" in words:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    return f"CUDA does not start: {words}", f"see whether nvidia-smi works; {CONTAINER}"


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
    elif device.type not in ("cpu", *KNOWN):  # of a loop that is watched
        found["name"] = name_of_other(device)
    if device.type == "cuda":
        found["versions"]["cuda"] = torch.version.cuda
        if torch.version.hip:
            found["versions"]["hip"] = torch.version.hip
        found |= _describe_card(device)
    if device.type in ("cpu", *KNOWN):
        found["compile_lacks"] = compile_lacks(device)
    return found


def _describe_card(device: torch.device) -> dict[str, Any]:
    """Return what `describe` adds, or says otherwise, of a CUDA device."""
    card = torch.cuda.get_device_properties(device)
    uuid = card_uuid(device)
    found: dict[str, Any] = {
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


def use_fixed_threads() -> None:
    """Give the model a fixed quarter of the cores, so that the loader has the others."""
    torch.set_num_threads(max(1, quotas.cpu_cores().count // 4))


def cpu_name() -> str:
    """Return the processor's name, as the system tells it."""
    text = ""
    with contextlib.suppress(OSError):
        text = CPU_INFO.read_text()
    if "model name" not in text:  # an ARM's has numbers, which lscpu knows the names of
        text += _said_by("lscpu") + "model name:" + _said_by("sysctl", "-n", BRAND)
    names = re.findall(r"^model name\s*:(.*\S)", text, re.MULTILINE | re.IGNORECASE)
    known = [" ".join(name.split()) for name in names if name.strip() != "-"]
    return known[0] if known else platform.processor() or platform.machine()


def _said_by(*command: str) -> str:
    """Return what a command of the system prints; "" where there is none."""
    environment = os.environ | {"LC_ALL": "C"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, env=environment, stderr=subprocess.DEVNULL, text=True, timeout=5
        )
    return ""


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


# What PyTorch and its libraries say when an allocation is refused
REFUSED = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|could not create a"
    r"|cannot allocate memory|STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


NO_ENGINE = "unable to find an engine"  # cuDNN: no memory for any, or none made for this card
FULL_SHARE = 0.1  # of a card's memory, free: below that it is the memory


def refused(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, as against any other failure."""
    if NO_ENGINE in str(error).lower():
        free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 1)
        return free < FULL_SHARE * total
    return isinstance(error, MemoryError) or bool(REFUSED.search(str(error)))


if __name__ == "__main__":
    use_fixed_threads()
    print(json.dumps(describe(find_device()) | {"unused_gpu": unused_gpu()}))
