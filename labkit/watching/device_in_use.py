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
    write: AddStep, device: torch.device | None = None
) -> tuple[dict[str, Any], DeviceClock | None]:
    """Describe the machine, without torch as far as Python knows it, and return a GPU's clock.

    `device` is the one that is trained on, where that is known.
    """
    if not (torch := sys.modules.get("torch")):
        return plain_machine(), None
    from labkit.instruments import machine
    from labkit.stamps.timeline import DeviceClock

    # a FakeTensor says "cuda" where there is no driver
    if device is None or (device.type == "cuda" and not torch.cuda.is_initialized()):
        device = device_in_use(torch)
    clock = DeviceClock(device, write) if device.type == "cuda" else None
    return machine.describe(device), clock


def device_of(trained: Iterable[torch.Tensor]) -> torch.device | None:
    """Return the device of some weights, a card where one has any; None where they do not tell.

    Weights on the CPU tell only where they are plain parameters: shards, and copies that an
    optimizer has offloaded, rest there while the model computes on a card.
    """
    parameter = sys.modules["torch"].nn.Parameter
    weights = [each for each in trained if each.device.type != "meta"]
    told = [each for each in weights if each.device.type != "cpu" or type(each) is parameter]
    return max(
        (each.device for each in told), key=lambda device: device.type != "cpu", default=None
    )


def device_in_use(torch: ModuleType) -> torch.device:
    """Return the device this process holds tensors on; starts no CUDA of its own."""
    cards = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    card = max(cards, key=torch.cuda.memory_allocated, default=0)
    if cards and torch.cuda.memory_allocated(card):
        return torch.device("cuda", card)
    on_mps = torch.backends.mps.is_available() and torch.mps.current_allocated_memory()
    return torch.device("mps" if on_mps else "cpu")
