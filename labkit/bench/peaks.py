"""What this device was measured to reach: bytes a second of its memory, FLOP/s in each format.

A rate is kept for the day on which it was measured, so that all notebooks of a day agree. It is the
rate of the fastest block of calls: whatever else runs on the machine only makes a block slower.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from labkit.bench import formats
from labkit.instruments import host, machine
from labkit.process import folders
from labkit.stamps.events import private
from labkit.stamps.folder_rights import text_of

if TYPE_CHECKING:
    from labkit.bench.stopwatch import Bench

SECONDS = 0.5  # of timing for each rate
# The size of an array in last-level caches, and never smaller than 1 GiB: a large CPU has several
# such caches. A GPU's L2 does not drop what was used longest ago, so that twice its size would
# still find a part there (Mei and Chu, IEEE TPDS 28(1), 2017)
TIMES_CACHE = 4
LEAST_BYTES = 2**30
SIDE = 8192  # of square matrices on a GPU; a CPU takes as long for smaller ones
SIDE_ON_CPU = 1024


def measured(bench: Bench, of: str, *, again: bool = False) -> dict[str, object]:
    """Return the rate of memory ("bandwidth", byte/s) or of products in a format (FLOP/s).

    With the day. Today's rate is returned as it was kept, unless `again`.
    """
    today = date.today().isoformat()
    known = _peaks(bench.device)
    if again or known.get(of, {}).get("day") != today:
        rate = memory_rate(bench) if of == "bandwidth" else product_rate(bench, of)
        known[of] = {"per_s": rate, "day": today}
        path = _file_of(bench.device)
        part = path.with_suffix(f".{os.getpid()}")  # another run may be writing the same
        with open(part, "w", opener=private) as file:
            json.dump(known, file)
        part.replace(path)
    return known[of]


def memory_rate(bench: Bench) -> float:
    """Return byte/s of an array that is scaled in place: each number is read once, written once.

    A copy would read its target too before a CPU overwrites it, which nobody counts.
    """
    size = max(LEAST_BYTES, TIMES_CACHE * machine.cache_bytes(bench.device))
    array = torch.ones(size // 4, device=bench.device)
    return fastest(bench, lambda: array.mul_(0.9999), 2 * array.nbytes)


def product_rate(bench: Bench, name: str) -> float:
    """Return FLOP/s of products of large square matrices in a format."""
    if why := formats.why_not(name, bench.device):
        bench.skip(why)
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    side = SIDE_ON_CPU if bench.device.type == "cpu" else SIDE
    squares = torch.randn(3, side, side, device=bench.device)
    left, right, out = squares.to(formats.DTYPES.get(name, torch.float32))
    return fastest(bench, lambda: torch.mm(left, right, out=out), 2 * side**3)


def fastest(bench: Bench, work: Callable[[], object], amount: float) -> float:
    """Return how much of `amount` a second `work` does in its fastest block of calls."""
    bench.time(work, seconds=SECONDS)
    return amount / min(bench.rows[-1]["seconds"])


# -- what was measured, in a file for each device, number of threads and version of torch ----------


def kept(device: torch.device) -> dict[str, float] | None:
    """Return {format: FLOP/s, "bandwidth": byte/s} as last measured here; None without any."""
    return {name: peak["per_s"] for name, peak in _peaks(device).items()} or None


def _peaks(device: torch.device) -> dict[str, dict[str, Any]]:
    """Return {format or "bandwidth": what `measured` returned}; {} without any."""
    with contextlib.suppress(ValueError):  # there is none
        return json.loads(text_of(_file_of(device)))
    return {}


def _file_of(device: torch.device) -> Path:
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{host.cpu_name()} {device.type} {torch.get_num_threads()} threads"
    return folders.part("peaks") / f"{name} torch {torch.__version__}.json".replace("/", " ")
