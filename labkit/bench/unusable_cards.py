"""Why a card that is here cannot be used, and what to install so that it can."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

import pynvml
import torch

from labkit.bench.gpu_meter import TEGRA
from labkit.bench.spare_card import BLACKWELL, OLDEST, TURING

# PyTorch's builds by CUDA's major version. A driver runs all builds of the versions it knows: CUDA
# 12 from driver 525 on, CUDA 13 from 580 on (docs.nvidia.com/deploy/cuda-compatibility).
BUILDS = {12: "cu126", 13: "cu130"}
KNOWN = ("cuda", "mps")  # torch's names of the accelerators that labkit measures on; ROCm's is CUDA
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
FOR_JETSON = (
    "install NVIDIA's PyTorch for Jetson (docs.nvidia.com/deeplearning/frameworks/"
    "install-pytorch-jetson-platform)"
)
CONTAINER = "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"


@dataclass(frozen=True)
class Unusable:
    """A card that is here and that torch cannot use."""

    name: str
    why: str
    remedy: str
    wheel: str | None = None  # the build of torch that could, such as "cu126"

    def __str__(self) -> str:
        return f"{self.name} cannot be used: {self.why}. Remedy: {self.remedy}"

    @property
    def in_short(self) -> str:
        """The card, and the wheel to install where that is the remedy."""
        text = f"{self.name} cannot be used"
        if self.wheel is None:
            return text
        return f"{text}: install torch's wheel {self.wheel} (lk.machine() has the command)"


def lacks_kernels(index: int) -> Unusable | None:
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
    if TEGRA.exists():
        return Unusable(name, f"{why} ({facts})", FOR_JETSON)
    wheel = wheel_for(card, _cuda_of_driver())
    return Unusable(name, f"{why} ({facts})", installing(wheel), wheel)


def _lacks_amd_kernels(index: int, built: list[str]) -> Unusable | None:
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
    return Unusable(card.name, why, remedy)


def wheel_for(card: tuple[int, int], driver_major: int) -> str | None:
    """Return the build of torch for a card's compute capability and driver; None without one."""
    if card < OLDEST:
        return None
    build = BUILDS[min(max(driver_major, 12), 13)]
    if card < TURING:
        build = BUILDS[12]
    elif card >= BLACKWELL and build == BUILDS[12]:
        build = "cu128"
    return build


def installing(wheel: str | None) -> str:
    """Return how to install a build of torch."""
    return INSTALL + wheel if wheel else "none: PyTorch 2 has no build for a card this old"


def _cuda_of_driver() -> int:
    """Return the newest major version of CUDA that the driver runs; 13 where it does not tell."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetCudaDriverVersion() // 1000
    return 13


def unused_facts() -> dict[str, str | None]:
    """Return what a `machine` event says of a card that is here and not used."""
    card = unused_gpu()
    return {"unused_gpu": card and str(card), "unused_gpu_in_short": card and card.in_short}


def unused_gpu() -> Unusable | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and other.type not in KNOWN:
        name = name_of_other(other)
        why = "labkit measures on CUDA, ROCm, Apple's GPU and the CPU only"
        return Unusable(name, why, "none here; the numbers are the CPU's")
    if torch.cuda.is_available():
        lacking = [lacks_kernels(index) for index in range(torch.cuda.device_count())]
        return lacking[0] if lacking and all(lacking) else None
    if TEGRA.exists():
        why = f"torch {torch.__version__} sees no CUDA device"
        return Unusable("The Jetson's GPU", why, FOR_JETSON)
    return _why_torch_sees_no_card()


def _why_torch_sees_no_card() -> Unusable | None:
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
    wheel = wheel_for((major, minor), driver_major)
    remedy = installing(wheel)
    if built is None:
        why = "this torch is built without CUDA"
    elif int(built.split(".")[0]) > driver_major:
        why = "its driver is too old for this torch"
        if driver_major >= 12:
            remedy += ", or install a newer driver"
    else:
        why, remedy = _why_cuda_does_not_start()
        wheel = None
    if driver_major < 12:
        remedy = f"install driver 525 or newer, then {remedy}"
    torch_is = f"torch {torch.__version__} is built for {f'CUDA {built}' if built else 'the CPU'}"
    facts = f"driver {driver} runs CUDA up to {driver_major}.{newest % 1000 // 10}, {torch_is}"
    return Unusable(name, f"{why} ({facts})", remedy, wheel)


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
