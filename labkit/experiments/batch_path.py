"""The way of a batch: from disk to RAM, over the bus, into the device's memory, to its arithmetic.

Each crossing is measured alone, with the same bytes, so that the narrow place can be seen.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from labkit.bench.caches import cache_bytes, past_cache_elements, random_array
from labkit.bench.workbench import Workbench
from labkit.experiments.copies import NO_PINS, pins
from labkit.experiments.matrix_rates import side, time_product

MIB = 2**20
READS = 5
CPU = torch.device("cpu")


def measure(job: Any, bench: Workbench) -> None:
    """Move `mib` MiB over each leg; `bytes` of a leg are what arrives (not read plus written)."""
    size = job.mib * MIB
    with a_file(size) as path:
        bench.stage("reading from disk")
        if can_evict():
            bench.write("disk to RAM", seconds=read_times(path, evicted=True), bytes=size)
        else:
            bench.skip("disk to RAM", "this system cannot drop a file from its page cache")
        bench.write("page cache to RAM", seconds=read_times(path, evicted=False), bytes=size)
    bench.stage("copying in RAM")
    numbers = size // 4
    source = random_array(numbers, CPU)
    target = torch.empty_like(source).fill_(1.0)
    bench.time(lambda: target.copy_(source), of="RAM to RAM", bytes=size)
    if bench.device.type == "cpu":
        within_cpu(bench)
    else:
        over_the_bus(bench, source)
    bench.stage("computing")
    time_product(bench, "fp32", side(bench, "fp32", math.inf), of="arithmetic")


def over_the_bus(bench: Workbench, source: torch.Tensor) -> None:
    """Pin, cross the bus from pageable and from pinned memory, and copy within the card."""
    bench.stage("crossing the bus")
    size, starts = 4 * source.numel(), {"RAM to device": source}
    if pins(bench.device):
        pinned = starts["pinned RAM to device"] = source.pin_memory()
        bench.time(lambda: pinned.copy_(source), of="RAM to pinned RAM", bytes=size)
    else:
        bench.skip("pinned RAM", NO_PINS)
    for of, start in starts.items():
        bench.time(lambda start=start: start.to(bench.device), of=of, bytes=size)
    large = random_array(past_cache_elements(bench.device), bench.device)
    other = torch.empty_like(large)
    bench.time(lambda: other.copy_(large), of="device memory", bytes=4 * large.numel())


def within_cpu(bench: Workbench) -> None:
    """No bus to cross: read from RAM and from the second-level cache (a sum: every number once)."""
    why = "the device is the CPU: a batch is where it is computed already"
    bench.skip("pinned RAM, PCIe, device memory", why)
    large = random_array(past_cache_elements(CPU), CPU)
    bench.time(lambda: large.sum(), of="RAM to core", bytes=4 * large.numel())
    cache = cache_bytes(CPU).get("L2")
    if cache is None:
        bench.skip("L2 cache to core", "the size of the cache is not told")
        return
    small = large[: cache // 8]  # float32: half of the cache
    bench.time(lambda: small.sum(), of="L2 cache to core", bytes=4 * small.numel())


@contextlib.contextmanager
def a_file(size: int) -> Iterator[Path]:
    """Write a file of random bytes to the run's own disk, and remove it afterwards."""
    handle, name = tempfile.mkstemp(dir=Path.cwd(), suffix=".bin")
    try:
        with open(handle, "wb") as file:
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        os.unlink(name)


def can_evict() -> bool:
    """Whether a file can be dropped from the system's page cache, so that it is read from disk."""
    return hasattr(os, "posix_fadvise")


def read_times(path: Path, evicted: bool) -> list[float]:
    """Read the whole file `READS` times into one buffer; return the seconds of each, sorted."""
    buffer, times = bytearray(path.stat().st_size), []
    for _ in range(READS):
        with open(path, "rb", buffering=0) as file:
            if evicted:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            file.readinto(buffer)
            times.append(time.perf_counter() - started)
    return sorted(times)
