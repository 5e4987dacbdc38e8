"""Copies: the same bytes in many pieces and in one, and the way of a batch from disk to the math.

On a GPU `bytes` of a copy are those that cross the bus. On a CPU there is no bus: the pieces go
from RAM to RAM, and `bytes` is what is copied (it is read once and written once).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.experiments.matrix_products import side, time_product
from labkit.experiments.measure import page, primitives
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, boxes = Later("torch"), Later("labkit.show.primitives")

MIB = 2**20
NO_PINS = "page-locked memory is for CUDA devices; this GPU shares the CPU's memory"
ISSUES = 20  # copies of which the host's own share is timed
READS = 5  # of the file


@experiment(
    "the same bytes copied in one piece and in many",
    mib=knob(64, "what is copied", unit="MiB", low=1, high=1 << 16),
    pieces=knob([1, 64, 4096], "pieces it is copied in", low=1, high=1 << 30),
)
def copies(job: Any, bench: Any) -> None:
    """Copy `mib` MiB as 1 piece and as many, for each number in `pieces`.

    On a GPU from RAM to the card, from pageable and from pinned memory, blocking and not.
    """
    total = job.mib * MIB // 4  # float32 numbers
    for done, pieces in enumerate(job.pieces, 1):
        bench.stage("copying", done, len(job.pieces))
        if pieces > total:
            bench.skip(f"{pieces} pieces", f"{job.mib} MiB are only {total} numbers")
        elif bench.on_cpu:
            sources = separate(bench, total, pieces)
            targets = [torch.empty_like(each).fill_(1.0) for each in sources]  # with their pages
            pairs = list(zip(targets, sources, strict=True))
            bench.time(lambda pairs=pairs: [to.copy_(of) for to, of in pairs], of="copy",
                       bytes=4 * total, pieces=pieces)  # fmt: skip
        else:
            copy_to_card(bench, total, pieces)
    if bench.on_cpu:
        bench.skip("pinned and non_blocking", "there is no bus to cross: the device is the CPU")
    elif not pins(bench.device):
        bench.skip("pinned", NO_PINS)


def copy_to_card(bench: Any, total: int, pieces: int) -> None:
    """Time copies from RAM to the card in each of the four ways, and what the host waits."""
    for pinned in (False, True) if pins(bench.device) else (False,):
        sources = separate(bench, total, pieces, pinned)
        for waits in (True, False):
            case = {"pieces": pieces, "pinned": pinned, "non_blocking": not waits}

            def copy(sources=sources, waits=waits):
                return [source.to(bench.device, non_blocking=not waits) for source in sources]

            bench.time(copy, of="copy", bytes=4 * total, **case)
            times = []  # of the call itself, each from an idle device: not the copy's time
            for _ in range(ISSUES if pieces == 1 else 0):
                bench.synchronize()
                started = time.perf_counter()
                copy()
                times.append(time.perf_counter() - started)
            if times:
                bench.write("the host is held", seconds=sorted(times), **case)
            bench.synchronize()


def pins(device: Any) -> bool:
    """Return whether memory can be page-locked for `device`.

    For Apple's, PyTorch moves it there instead (up to 2.13: pytorch issue 181374).
    """
    return device.type == "cuda"


def separate(bench: Any, total: int, pieces: int, pinned: bool = False) -> list[torch.Tensor]:
    """Return `pieces` tensors in RAM of together `total` random numbers, in memory apart.

    Pinned ones lie in one block: to page-lock each of thousands takes seconds.
    """
    each = total // pieces
    numbers = bench.random_array(each * pieces, "cpu")
    if pinned:
        return list(numbers.pin_memory().split(each))
    return [piece.clone() for piece in numbers.split(each)]


# -- the way of a batch ----------------------------------------------------------------------------


@experiment(
    "the way of a batch from disk to the device's arithmetic, each crossing measured",
    mib=knob(64, "size of the batch", unit="MiB", low=1, high=1 << 14),
)
def batch_path(job: Any, bench: Any) -> None:
    """Move `mib` MiB over each leg; `bytes` of a leg are what arrives (not read plus written).

    Each crossing is measured alone, with the same bytes, so that the narrow place can be seen.
    """
    size = job.mib * MIB
    with a_file(size) as path:
        bench.stage("reading from disk")
        if hasattr(os, "posix_fadvise"):
            bench.write("disk to RAM", seconds=read_times(path, evicted=True), bytes=size)
        else:
            bench.skip("disk to RAM", "this system cannot drop a file from its page cache")
        bench.write("page cache to RAM", seconds=read_times(path, evicted=False), bytes=size)
    bench.stage("copying in RAM")
    source = bench.random_array(size // 4, "cpu")
    target = torch.empty_like(source).fill_(1.0)
    bench.time(lambda: target.copy_(source), of="RAM to RAM", bytes=size)
    if bench.on_cpu:
        within_cpu(bench)
    else:
        over_the_bus(bench, source)
    bench.stage("computing")
    time_product(bench, "fp32", side(bench, "fp32", largest=True), of="arithmetic")


def over_the_bus(bench: Any, source: torch.Tensor) -> None:
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
    large = bench.random_array(bench.past_cache_elements())
    other = torch.empty_like(large)
    bench.time(lambda: other.copy_(large), of="device memory", bytes=4 * large.numel())


def within_cpu(bench: Any) -> None:
    """Read from RAM and from the second-level cache (a sum: every number once); no bus to cross."""
    why = "the device is the CPU: a batch is where it is computed already"
    bench.skip("pinned RAM, PCIe, device memory", why)
    large = bench.random_array(bench.past_cache_elements())
    bench.time(lambda: large.sum(), of="RAM to core", bytes=4 * large.numel())
    if cache := bench.cache_bytes().get("L2"):
        small = large[: cache // 8]  # float32: half of the cache
        bench.time(lambda: small.sum(), of="L2 cache to core", bytes=4 * small.numel())
    else:
        bench.skip("L2 cache to core", "the size of the cache is unknown")


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


def read_times(path: Path, evicted: bool) -> list[float]:
    """Read the whole file `READS` times into one buffer; return the seconds of each, sorted.

    `evicted` drops it from the page cache before, so that it is read from disk.
    """
    buffer, times = bytearray(path.stat().st_size), []
    for _ in range(READS):
        with open(path, "rb", buffering=0) as file:
            if evicted:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            file.readinto(buffer)
            times.append(time.perf_counter() - started)
    return sorted(times)


# -- its figure: places as boxes, crossings as arrows with their rates -----------------------------

TALL = 1.75  # inches
# Per kind of device the places, and the legs that lead to each; the first is the way of the batch
PATHS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "cpu": [
        ("disk", ()), ("RAM\n(the file)", ("disk to RAM", "page cache to RAM")),
        ("RAM\n(the batch)", ("RAM to RAM",)), ("core", ("RAM to core", "L2 cache to core")),
    ],
    "gpu": [
        ("disk", ()), ("RAM,\npageable", ("disk to RAM", "page cache to RAM")),
        ("RAM,\npinned", ("RAM to pinned RAM",)),
        ("VRAM", ("pinned RAM to device", "RAM to device")), ("SMs", ("device memory",)),
    ],
}  # fmt: skip
COLOURS = ("#EEEEEE", "#CFE3F1", "#B9D3E8", "#F5E6C4", "#CDE9DF")


@batch_path.figure
def draw_path(measured: Any) -> Any:
    """Draw the way of a batch, each arrow with its measured GB/s, the narrowest one in bold."""
    path = PATHS["gpu" if measured.machine.kind == "gpu" else "cpu"]
    rates = {p.of: f"{primitives.number(p.gb_per_s)} GB/s" for p in measured if p.gb_per_s}
    legs = [leg[0] for _, leg in path if leg and leg[0] in rates]
    slowest = min(legs, key=lambda leg: measured.one(leg).gb_per_s, default=None)
    title = f"the narrowest place: {slowest}, {rates.get(slowest, 'not measured')}"
    figure, (axes,) = page(measured, [(0.05, TALL)], "10⁹ byte/s that arrive, each crossing alone",
                           title=title, left_in=0.12, bottom_in=0.05)  # fmt: skip
    boxes.canvas(axes, TALL)
    each = boxes.WIDE / (len(path) + 0.62 * (len(path) - 1))  # a gap is 0.62 of a place
    arithmetic = [p.tflop_per_s for p in measured.where("arithmetic") if p.tflop_per_s]
    for place, (name, legs) in enumerate(path):
        x = 1.62 * place * each
        if arithmetic and place == len(path) - 1:
            name += "\n" + primitives.flops_text(arithmetic[0]).replace(" ", "\n")
        boxes.box(axes, x, 0.55, each, 0.8, COLOURS[place], name)
        if legs:
            boxes.arrow(axes, (x - 0.58 * each, 0.95), (x - 0.04 * each, 0.95))
            boxes.say(axes, x - 0.31 * each, 1.2, rates.get(legs[0], "not\nmeasured"), fontsize=8,
                      fontweight="bold" if legs[0] == slowest else "normal")  # fmt: skip
        for other in legs[1:]:
            if other in rates:
                boxes.say(axes, x + each / 2, 0.28, f"{other}:\n{rates[other]}", color="#555555")
    return figure
