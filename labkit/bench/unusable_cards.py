"""Why a card that is here cannot be used, and what to do so that it can."""

from __future__ import annotations

import contextlib
import os
import re

import pynvml
import torch

KNOWN = ("cpu", "cuda", "mps")  # torch's names of what labkit measures on
INSTALL = "install the torch for this card and its driver: https://pytorch.org/get-started/locally"


def unusable(name: str, why: str, remedy: str) -> str:
    """Say that torch cannot use a card that is here."""
    return f"{name} cannot be used: {why}. Remedy: {remedy}"


def is_known(device: torch.device) -> bool:
    """Whether labkit measures on a device; ROCm's are called CUDA, and are none of these."""
    return device.type in KNOWN and not (device.type == "cuda" and torch.version.hip)


def started_cards() -> range:
    """Return the CUDA devices that torch can start: none without a driver that fits it.

    `device_count` alone counts by NVML also those that a driver is too old for.
    """
    can_start = torch.cuda.is_available() and not torch.version.hip
    return range(torch.cuda.device_count() if can_start else 0)


def lacks_kernels(index: int) -> str | None:
    """Say why this torch cannot compute on a card that it sees, and the remedy; None if it can.

    Without this every operation ends in "no kernel image is available for execution".
    """
    built = torch.cuda.get_arch_list()
    kernels = re.findall(r"\b(sm|compute)_(\d+)(\d)[a-z]?\b", " ".join(built))
    card = torch.cuda.get_device_capability(index)
    # a binary runs on later cards of its generation, intermediate code (PTX) on all later ones
    runs = (
        (int(major), int(minor)) <= card and (kind == "compute" or int(major) == card[0])
        for kind, major, minor in kernels
    )
    if any(runs) or not kernels:  # or a build that does not tell
        return None
    why = f"this torch has no kernels for its compute capability {card[0]}.{card[1]}"
    facts = f"torch {torch.__version__} is built for {', '.join(built)}"
    return unusable(torch.cuda.get_device_name(index), f"{why} ({facts})", INSTALL)


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and not is_known(other):
        why = "labkit measures on CUDA, Apple's GPU and the CPU only"
        return unusable(name_of_other(other), why, "none here; the numbers are the CPU's")
    if cards := started_cards():
        lacking = list(map(lacks_kernels, cards))
        return lacking[0] if all(lacking) else None
    with contextlib.suppress(pynvml.NVMLError):  # there is no driver
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver = pynvml.nvmlSystemGetDriverVersion()
        facts = f"driver {driver}, torch {torch.__version__}"
        return unusable(pynvml.nvmlDeviceGetName(card), f"{_why_not_started()} ({facts})", INSTALL)
    return None


def _why_not_started() -> str:
    """Return why CUDA does not start, in torch's own words."""
    words = "torch gives no reason"
    try:
        torch.cuda.init()
    except Exception as error:
        words = str(error).strip().split("\n")[0].rstrip(".")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and "No CUDA GPUs" in words:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides it"
    return words


def name_of_other(device: torch.device) -> str:
    """Return the name of an accelerator that labkit does not know, such as "Arc (XPU)"."""
    kind = "ROCm" if device.type == "cuda" else device.type.upper()
    with contextlib.suppress(Exception):  # whatever its module lacks, it has a type
        return f"{torch.get_device_module(device).get_device_name()} ({kind})"
    return kind
