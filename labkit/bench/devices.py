"""Which device a run uses."""

from __future__ import annotations

import contextlib

import psutil
import pynvml
import torch

from labkit.bench.unusable_cards import KNOWN, lacks_kernels, unused_gpu

IDLE_MEMORY = 0.05  # of a card's: what a driver and a desktop hold
# And a CUDA context of ours, where a container hides which processes are ours
IDLE_BYTES = 2**30


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
