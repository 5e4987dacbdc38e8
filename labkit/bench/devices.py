"""Which device a run uses."""

from __future__ import annotations

import contextlib

import psutil
import pynvml
import torch

from labkit.bench.unusable_cards import lacks_kernels, started_cards, unused_gpu

IDLE_MEMORY = 0.05  # of a card's: what a driver and a desktop hold
# And a CUDA context of ours, where a container hides which processes are ours
IDLE_BYTES = 2**30


def find_device(wanted: str = "auto") -> torch.device:
    """Return the torch device for the `device` knob; raise RuntimeError where it is not here."""
    if wanted == "auto":
        wanted = "mps" if torch.backends.mps.is_available() else "cpu"
        if cards := usable_cards():
            wanted = f"cuda:{least_busy(cards)}"
    if wanted == "cpu":
        return torch.device(wanted)
    here = why_not()
    name = "cuda:0" if wanted == "cuda" else wanted
    why = here[name] if name in here else unused_gpu() or f"it is not here; {', '.join(here)} are."
    if why:
        raise RuntimeError(f"device={wanted!r}: {why}")
    return torch.device(name)


def why_not() -> dict[str, str | None]:
    """Return each device that is here, and why torch cannot use it; None where it can."""
    here: dict[str, str | None] = {"cpu": None}
    for index in started_cards():
        here[f"cuda:{index}"] = lacks_kernels(index)
    if torch.backends.mps.is_available():
        here["mps"] = None
    return here


def usable_cards() -> list[int]:
    """Return the CUDA devices for whose architecture this torch has kernels."""
    return [index for index in started_cards() if not lacks_kernels(index)]


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
