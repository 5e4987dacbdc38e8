"""Which device each rank of a distributed run takes."""

from __future__ import annotations

import torch

from labkit.bench import devices


def take_device(wanted: str, ranks: int, rank: int) -> tuple[torch.device, str | None]:
    """Make a rank's device the current one; return it, and why it is no GPU, if so."""
    kind, not_the_gpu = device_kind(wanted, ranks)
    device = torch.device(kind)
    if device.type == "cuda":
        device = torch.device("cuda", devices.usable_cards()[rank])
        devices.use(device)
    return device, not_the_gpu


def device_kind(wanted: str, ranks: int) -> tuple[str, str | None]:
    """Return "cuda" or "cpu", and why it is not the GPU that a single run would use, if so."""
    count = len(devices.usable_cards())
    if wanted != "cpu" and count >= ranks:
        return "cuda", None
    why = f"each rank needs a CUDA device of its own, and {ranks} ranks have {count} between them"
    on_gpu = devices.find_device(wanted).type != "cpu"
    return "cpu", f"{why}: all train on the CPU" if on_gpu else None
