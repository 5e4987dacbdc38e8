"""The machine and the device that somebody else's loop runs on.

Nothing here imports torch, runs their code, or waits for a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit.instruments.host import plain_machine

if TYPE_CHECKING:
    import torch

    from labkit.stamps.timeline import AddStep, DeviceClock


def machine_and_clock(
    write: AddStep, weights: Iterable[torch.Tensor] = ()
) -> tuple[dict[str, Any], DeviceClock | None]:
    """Describe the machine, without torch as far as Python knows it, and return a GPU's clock.

    `weights` are those that are trained, where they are known.
    """
    if not (torch := sys.modules.get("torch")):
        return plain_machine(), None
    from labkit.instruments import machine
    from labkit.stamps.timeline import DeviceClock

    device = device_in_use(torch, weights)
    clock = DeviceClock(device, write) if device.type == "cuda" else None
    return machine.describe(device), clock


def device_in_use(torch: ModuleType, weights: Iterable[torch.Tensor] = ()) -> torch.device:
    """Return the card with some of the weights, else the device on which this process has tensors.

    It starts no CUDA of its own.
    """
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    held = [torch.cuda.memory_allocated(card) for card in range(count)]
    for weight in weights:
        if weight.device.type == ("cuda" if count else "mps"):  # a FakeTensor's needs no driver
            return weight.device
    if any(held):
        return torch.device("cuda", held.index(max(held)))
    on_mps = torch.backends.mps.is_available() and torch.mps.current_allocated_memory()
    return torch.device("mps" if on_mps else "cpu")
