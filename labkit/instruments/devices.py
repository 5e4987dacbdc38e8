"""Which device a run uses, and why a card that is here is not used."""

from __future__ import annotations

import contextlib

import pynvml
import torch

KNOWN = ("cpu", "cuda", "mps")  # torch's names of what labkit measures on
INSTALL = "install the torch for this card and its driver: https://pytorch.org/get-started/locally"
HELD_BYTES = 2**30  # of a card's memory; steps in which cards are compared


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob; raise RuntimeError where it is not here."""
    here = usable()
    if wanted == "auto":
        cards = range(card_count())
        wanted = f"cuda:{min(cards, key=_memory_held)}" if cards else here[-1]
    name = "cuda:0" if wanted == "cuda" else wanted
    if name not in here:
        why = unused_gpu() or f"it is not here; {', '.join(here)} are."
        raise RuntimeError(f"device={wanted!r}: {why}")
    return torch.device(name)


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


def _memory_held(index: int) -> int:
    """Return the GiB that are in use on a card; 0 where NVML does not tell."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(card_uuid(index))
        return int(pynvml.nvmlDeviceGetMemoryInfo(card).used) // HELD_BYTES
    return 0


def of_rank(wanted: str, ranks: int, rank: int) -> tuple[torch.device, str | None]:
    """Return a rank's device, and why it is not the GPU that a single run would use, if so."""
    count = card_count()
    if wanted != "cpu" and count >= ranks:
        return torch.device("cuda", rank), None
    why = f"each rank needs a CUDA device of its own, and {ranks} ranks have {count} between them"
    on_gpu = find_device(wanted).type != "cpu"
    return torch.device("cpu"), f"{why}: all train on the CPU" if on_gpu else None


def is_known(device: torch.device) -> bool:
    """Whether labkit measures on a device; ROCm's are called CUDA, and are none of these."""
    return device.type in KNOWN and not (device.type == "cuda" and torch.version.hip)


def unused_gpu() -> str | None:
    """Say which card is here and not used, why, and the remedy; None if none."""
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and not is_known(other):
        why = "labkit measures on CUDA, Apple's GPU and the CPU only"
        return _unusable(name_of_other(other), why, "none here; the numbers are the CPU's")
    if card_count():
        return None
    with contextlib.suppress(pynvml.NVMLError):  # there is no driver
        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        facts = f"driver {pynvml.nvmlSystemGetDriverVersion()}, torch {torch.__version__}"
        return _unusable(name, f"{_why_not_started()} ({facts})", INSTALL)
    return None


def _unusable(name: str, why: str, remedy: str) -> str:
    return f"{name} cannot be used: {why}. Remedy: {remedy}"


def _why_not_started() -> str:
    """Return why CUDA does not start, in torch's own words."""
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error).strip().split("\n")[0].rstrip(".")
    return "torch gives no reason"


def name_of_other(device: torch.device) -> str:
    """Return the name of an accelerator that labkit does not know, such as "Arc (XPU)"."""
    kind = "ROCm" if device.type == "cuda" else device.type.upper()
    with contextlib.suppress(Exception):  # whatever its module lacks, it has a type
        return f"{torch.get_device_module(device).get_device_name()} ({kind})"
    return kind


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
