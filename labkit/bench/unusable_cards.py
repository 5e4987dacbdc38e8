"""Why a card that is here cannot be used, and what to install so that it can."""

from __future__ import annotations

import contextlib
import os
import re

import pynvml
import torch

from labkit.bench.spare_card import BLACKWELL, OLDEST, TURING

# PyTorch's builds by CUDA's major version. A driver runs all builds of the versions it knows: CUDA
# 12 from driver 525 on, CUDA 13 from 580 on (docs.nvidia.com/deploy/cuda-compatibility).
BUILDS = {12: "cu126", 13: "cu130"}
KNOWN = ("cuda", "mps")  # torch's names of the accelerators that labkit measures on; ROCm's is CUDA
INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
CONTAINER = "start a container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def unusable(name: str, why: str, remedy: str) -> str:
    """Say that torch cannot use a card that is here."""
    return f"{name} cannot be used: {why}. Remedy: {remedy}"


def started_cards() -> range:
    """Return the CUDA devices that torch can start: none without a driver that fits it.

    `device_count` alone counts by NVML also those that a driver is too old for.
    """
    return range(torch.cuda.device_count() if torch.cuda.is_available() else 0)


def lacks_kernels(index: int) -> str | None:
    """Say why this torch cannot compute on a card that it sees, and the remedy; None if it can.

    Without this every operation ends in "no kernel image is available for execution".
    """
    built = torch.cuda.get_arch_list()
    known = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in built]
    if not any(known):  # of another maker, or a build that does not tell
        return None
    card = torch.cuda.get_device_capability(index)
    for match in known:
        if match is None:
            continue
        kind = match[1]
        kernel = (int(match[2]), int(match[3]))
        # a binary runs on later cards of its generation, intermediate code (PTX) on all later ones
        if kernel <= card and (kind == "compute" or kernel[0] == card[0]):
            return None
    name = torch.cuda.get_device_name(index)
    why = f"this torch has no kernels for its compute capability {card[0]}.{card[1]}"
    facts = f"torch {torch.__version__} is built for {', '.join(built)}"
    return unusable(name, f"{why} ({facts})", installing(card, _cuda_of_driver()))


def installing(card: tuple[int, int], driver_major: int) -> str:
    """Return how to install a torch for a card's compute capability and driver."""
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


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and other.type not in KNOWN:
        name = name_of_other(other)
        why = "labkit measures on CUDA, ROCm, Apple's GPU and the CPU only"
        return unusable(name, why, "none here; the numbers are the CPU's")
    if cards := started_cards():
        lacking = list(map(lacks_kernels, cards))
        return lacking[0] if all(lacking) else None
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
    remedy = installing((major, minor), driver_major)
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
    return unusable(name, f"{why} ({facts})", remedy)


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
