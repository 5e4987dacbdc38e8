"""Which device a run uses, and why a card that is here is not used."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil

import pynvml
import torch

MEASURED = ("CPU", "CUDA", "MPS")  # kinds of device that labkit measures on
INSTALL = "install the torch for this card and its driver: https://pytorch.org/get-started/locally"


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob, which the kernel has found to be here."""
    here = usable()
    return torch.device({"auto": here[min(1, len(here) - 1)], "cuda": "cuda:0"}.get(wanted, wanted))


def usable() -> list[str]:
    """Return the devices that a run can use, the CPU first."""
    cards = [f"cuda:{index}" for index in range(card_count())]
    return ["cpu", *cards, *(["mps"] if torch.backends.mps.is_available() else [])]


def card_count() -> int:
    """Return how many CUDA devices torch can start: none without a driver that fits it.

    `device_count` alone counts by NVML also those that a driver is too old for.
    """
    can_start = torch.cuda.is_available() and not torch.version.hip
    return torch.cuda.device_count() if can_start else 0


def of_rank(wanted: str, ranks: int, rank: int) -> tuple[torch.device, str | None]:
    """Return a rank's device, and why it is not the GPU that a single run would use, if so."""
    count = card_count()
    if wanted != "cpu" and count >= ranks:
        return torch.device("cuda", rank), None
    why = f"each rank needs a CUDA device of its own, and {ranks} ranks have {count} between them"
    on_gpu = find_device(wanted).type != "cpu"
    return torch.device("cpu"), f"{why}: all train on the CPU" if on_gpu else None


def kind_of(device: torch.device) -> str:
    """Return the kind of a device: one of `MEASURED`, or another; ROCm's are called CUDA."""
    return "ROCm" if device.type == "cuda" and torch.version.hip else device.type.upper()


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and kind_of(other) not in MEASURED:
        why = "labkit measures on CUDA, Apple's GPU and the CPU only"
        remedy = "none here; the numbers are the CPU's"
        return f"{kind_of(other)} cannot be used: {why}. Remedy: {remedy}"
    if card_count():
        return None
    with contextlib.suppress(pynvml.NVMLError):  # there is no driver
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        facts = f"driver {pynvml.nvmlSystemGetDriverVersion()}, torch {torch.__version__}"
        return f"{name} cannot be used: {_why_not_started()} ({facts}). Remedy: {INSTALL}"
    return None


def _why_not_started() -> str:
    """Return why CUDA does not start, in torch's own words."""
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error).strip().split("\n")[0].rstrip(".")
    return "torch gives no reason"


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


def compile_lacks(device: torch.device) -> str | None:
    """Return why torch.compile cannot act on `device`; None where it can."""
    if os.environ.get("TORCH_COMPILE_DISABLE", "0") not in ("", "0"):
        return "torch.compile is switched off (TORCH_COMPILE_DISABLE): what would run is eager"
    if device.type == "mps":
        return "torch.compile for Apple GPUs is not used here: still a prototype in PyTorch"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (7, 0):
        return "torch.compile needs a GPU of compute capability 7.0 (Volta) or later"
    if device.type != "cpu" and importlib.util.find_spec("triton") is None:
        return "torch.compile on a GPU needs Triton and found none: pip install triton"
    compilers = ("CXX", "g++", "clang++") if device.type == "cpu" else ("CC", "gcc", "clang")
    own, *usual = compilers
    if any(map(shutil.which, (os.environ.get(own, "cl"), *usual))):
        return None
    return f"torch.compile needs a compiler and found none: install {' or '.join(usual)}"
