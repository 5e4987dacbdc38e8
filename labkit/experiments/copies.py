"""The same bytes copied in many pieces and in one; pageable and pinned; waiting or not."""

from __future__ import annotations

import time
from typing import Any

import torch

from labkit.bench.caches import random_array
from labkit.bench.workbench import Workbench

MIB = 2**20
NO_PINS = "page-locked memory is for CUDA devices; this GPU shares the CPU's memory"
ISSUES = 20  # copies of which the host's own share is timed


def measure(job: Any, bench: Workbench) -> None:
    """Copy `mib` MiB as 1 piece and as many, for each number in `pieces`.

    On a GPU from RAM to the card, from pageable and from pinned memory, blocking and not. There
    `bytes` are those that cross the bus. On a CPU there is no bus: the pieces go from RAM to RAM,
    and `bytes` is what is copied (it is read once and written once).
    """
    total = job.mib * MIB // 4  # float32 numbers
    for pieces in job.pieces:
        if pieces > total:
            bench.skip(f"{pieces} pieces", f"{job.mib} MiB are only {total} numbers")
            continue
        bench.stage("copying", job.pieces.index(pieces) + 1, len(job.pieces))
        if bench.device.type == "cpu":
            copy_in_ram(bench, total, pieces)
        else:
            copy_to_card(bench, total, pieces)
    if bench.device.type == "cpu":
        bench.skip("pinned and non_blocking", "there is no bus to cross: the device is the CPU")
    elif not pins(bench.device):
        bench.skip("pinned", NO_PINS)


def copy_in_ram(bench: Workbench, total: int, pieces: int) -> None:
    """Time copies from RAM to RAM; the pieces lie apart, as tensors of their own would."""
    sources = separate(total, pieces)
    targets = [torch.empty_like(source) for source in sources]
    for target in targets:
        target.fill_(1.0)  # its pages are there before the clock runs
    pairs = list(zip(targets, sources, strict=True))
    bench.time(lambda: [to.copy_(of) for to, of in pairs], of="copy", bytes=4 * total,
               pieces=pieces)  # fmt: skip


def copy_to_card(bench: Workbench, total: int, pieces: int) -> None:
    """Time copies from RAM to the card in each of the four ways, and what the host waits."""
    for pinned in (False, True) if pins(bench.device) else (False,):
        sources = separate(total, pieces, pinned)
        for waits in (True, False):
            case = {"pieces": pieces, "pinned": pinned, "non_blocking": not waits}

            def copy(sources=sources, waits=waits):
                return [source.to(bench.device, non_blocking=not waits) for source in sources]

            bench.time(copy, of="copy", bytes=4 * total, **case)
            if pieces == 1:
                bench.write("the host is held", seconds=held(bench, copy), **case)


def held(bench: Workbench, copy: Any) -> list[float]:
    """Return how long the call itself takes, s, each from an idle device: not the copy's time."""
    times = []
    for _ in range(ISSUES):
        bench.synchronize()
        started = time.perf_counter()
        copy()
        times.append(time.perf_counter() - started)
    bench.synchronize()
    return sorted(times)


def pins(device: torch.device) -> bool:
    """Whether memory can be page-locked for `device`. For Apple's, PyTorch moves it there instead.

    (Up to 2.13: pytorch issue 181374.)
    """
    return device.type == "cuda"


def separate(total: int, pieces: int, pinned: bool = False) -> list[torch.Tensor]:
    """Return `pieces` tensors in RAM of together `total` random numbers, in memory apart.

    Pinned ones lie in one block: to page-lock each of thousands takes seconds.
    """
    each = total // pieces
    numbers = random_array(each * pieces, torch.device("cpu"))
    if pinned:
        return list(numbers.pin_memory().split(each))
    return [piece.clone() for piece in numbers.split(each)]
