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
    weights = list(trained)
    for each in weights:
        if each.device.type not in ("cpu", "meta"):
            return each.device
    is_plain = weights and type(weights[0]) is parameter and weights[0].device.type == "cpu"
    return weights[0].device if is_plain else None


def device_in_use(torch: ModuleType) -> torch.device:
    """Return the device this process holds tensors on; starts no CUDA of its own."""
    if torch.cuda.is_initialized():
        card = max(range(torch.cuda.device_count()), key=torch.cuda.memory_allocated)
        if torch.cuda.memory_allocated(card):
            return torch.device("cuda", card)
    other = torch.accelerator.current_accelerator()
    if other is None or other.type == "cuda":
        return torch.device("cpu")
    module = torch.get_device_module(other)
    held_bytes = module.current_allocated_memory if other.type == "mps" else module.memory_allocated
    return other if module.is_available() and held_bytes() else torch.device("cpu")
