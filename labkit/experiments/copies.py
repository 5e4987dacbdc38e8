"""Moving bytes: in many pieces and in one, from disk to the math, and within the device's memory.

`bytes` of a copy are those that cross a GPU's bus, or are copied from RAM to RAM.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.experiments.device import side, time_product
from labkit.experiments.measure import page, primitives, style, torch
from labkit.spec import experiment, knob

MIB = 2**20
# For Apple's GPUs PyTorch's pin_memory moves to the device instead (up to 2.13: its issue 181374)
NO_PINS = "page-locked memory is for CUDA devices; this GPU shares the CPU's memory"
ISSUES = 20  # copies of which the host's own share is timed
READS = 5  # of the file
SMALLEST = 2**11  # float32 numbers of the smallest array: 8 KiB
LEAST = 2  # launches that a copy takes on a GPU, or it is the launch that is timed


@experiment(
    "the same bytes copied in one piece and in many",
    mib=knob(64, "what is copied", unit="MiB", low=1, high=1 << 16),
    pieces=knob([1, 64, 4096], "pieces it is copied in", low=1, high=1 << 30),
)
def copies(job: Any, bench: Any) -> None:
    """Copy `mib` MiB as so many pieces; on a GPU from pageable and pinned RAM, blocking and not."""
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
    elif bench.device.type != "cuda":
        bench.skip("pinned", NO_PINS)


def copy_to_card(bench: Any, total: int, pieces: int) -> None:
    """Time copies from RAM to the card in each of the four ways, and what the host waits."""
    for pinned in (False, True) if bench.device.type == "cuda" else (False,):
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


def separate(bench: Any, total: int, pieces: int, pinned: bool = False) -> list[torch.Tensor]:
    """Return `pieces` tensors in RAM of together `total` random numbers, in memory apart."""
    each = total // pieces
    numbers = bench.random_array(each * pieces, "cpu")
    if pinned:  # in one block: to page-lock each of thousands takes seconds
        return list(numbers.pin_memory().split(each))
    return [piece.clone() for piece in numbers.split(each)]


@experiment(
    "the way of a batch from disk to the device's arithmetic, each crossing measured",
    mib=knob(64, "size of the batch", unit="MiB", low=1, high=1 << 14),
)
def batch_path(job: Any, bench: Any) -> None:
    """Move `mib` MiB over each leg alone; `bytes` are what arrives (not read plus written)."""
    size = job.mib * MIB
    read_a_file(bench, size)
    bench.stage("copying in RAM")
    source = bench.random_array(size // 4, "cpu")
    target = torch.empty_like(source).fill_(1.0)
    bench.time(lambda: target.copy_(source), of="RAM to RAM", bytes=size)
    large = bench.random_array(bench.past_cache_elements())
    if bench.on_cpu:  # a sum reads every number once
        why = "the device is the CPU: a batch is where it is computed already"
        bench.skip("pinned RAM, PCIe, device memory", why)
        bench.time(lambda: large.sum(), of="RAM to core", bytes=4 * large.numel())
        if cache := bench.cache_bytes().get("L2"):
            small = large[: cache // 8]  # float32: half of the cache
            bench.time(lambda: small.sum(), of="L2 cache to core", bytes=4 * small.numel())
        else:
            bench.skip("L2 cache to core", "the size of the cache is unknown")
    else:
        bench.stage("crossing the bus")
        bench.time(lambda: source.to(bench.device), of="RAM to device", bytes=size)
        if bench.device.type == "cuda":
            pinned = source.pin_memory()
            bench.time(lambda: pinned.copy_(source), of="RAM to pinned RAM", bytes=size)
            bench.time(lambda: pinned.to(bench.device), of="pinned RAM to device", bytes=size)
        else:
            bench.skip("pinned RAM", NO_PINS)
        other = torch.empty_like(large)
        bench.time(lambda: other.copy_(large), of="device memory", bytes=4 * large.numel())
    bench.stage("computing")
    time_product(bench, "fp32", side(bench, "fp32", largest=True), of="arithmetic")


def read_a_file(bench: Any, size: int) -> None:
    """Time whole reads of a file of random bytes on the run's own disk, out of its cache and in."""
    bench.stage("reading from disk")
    buffer = bytearray(size)
    with tempfile.NamedTemporaryFile(dir=Path.cwd(), suffix=".bin", buffering=0) as written:
        for start in range(0, size, MIB):
            written.write(os.urandom(min(MIB, size - start)))
        os.fsync(written.fileno())
        drop = getattr(os, "posix_fadvise", None)  # from the page cache
        if drop is None:
            bench.skip("disk to RAM", "this system cannot drop a file from its page cache")
        for of in ("disk to RAM", "page cache to RAM") if drop else ("page cache to RAM",):
            times = []
            for _ in range(READS):
                if of == "disk to RAM":
                    drop(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                written.seek(0)
                started = time.perf_counter()
                written.readinto(buffer)
                times.append(time.perf_counter() - started)
            bench.write(of, seconds=sorted(times), bytes=size)


BESIDE = ("page cache to RAM", "L2 cache to core", "RAM to device")  # other ways to such a place


@batch_path.figure
def draw_path(measured: Any) -> Any:
    """Draw the rate of each crossing, in the order of the way, and mark the narrowest."""
    rates = {p.of: p.gb_per_s for p in measured if p.gb_per_s and p.of != "arithmetic"}
    slowest = min((leg for leg in rates if leg not in BESIDE), key=rates.get, default="none")
    colours = dict.fromkeys(BESIDE, style.OTHER) | {slowest: style.ALARM}
    rows = []
    for leg, rate in rates.items():
        colour, text = colours.get(leg, style.LINES[0]), f"{primitives.number(rate)} GB/s"
        rows.append(primitives.Bar(leg, rate, text, colour))
    panels, title = [(0.1, primitives.rows_in(len(rows)))], f"the narrowest place: {slowest}"
    figure, (axes,) = page(measured, panels, title=title, left_in=1.9)
    primitives.hbars(axes, rows, "10⁹ byte/s that arrive, each crossing alone (grey: other ways)")
    return figure


@experiment(
    "copies within the device's own memory, from cache-sized to far beyond",
    largest_mib=knob(None, "the largest array", kind="float", unit="MiB", low=0.01, high=1 << 20,
                     auto="well past the last-level cache"),
)  # fmt: skip
def bandwidth(job: Any, bench: Any) -> None:
    """Time `out.copy_(x)` for arrays from 8 KiB on, each four times the one before.

    Bytes: n numbers read and n written (the convention of STREAM, McCalpin 1995: what a cache
    fetches before it can write is not counted). The last point is the device's bandwidth.
    """
    largest = max(SMALLEST, bench.past_cache_elements(job.largest_mib))
    source = bench.random_array(largest)
    target = torch.empty_like(source).fill_(1.0)
    sizes = [largest]
    while sizes[-1] // 4 >= SMALLEST:
        sizes.append(sizes[-1] // 4)
    bench.write("caches", values=bench.cache_bytes())
    left_out = 0
    for done, n in enumerate(reversed(sizes)):
        bench.stage("copying", done, len(sizes))
        copy = functools.partial(target[:n].copy_, source[:n])
        if not bench.on_cpu and n < largest and bench.quick_s(copy) < LEAST * bench.launch_s:
            left_out = n
        else:
            bench.time(copy, of="copy", bytes=8 * n, launches=1, array_bytes=4 * n)
    if left_out:
        size = f"arrays up to {left_out / 2**18:.3g} MiB"
        bench.skip(size, f"a copy takes less than {LEAST} launches: those would be timed")
    past = bench.is_past_cache(8 * largest)
    bench.write("largest", values={"array_bytes": 4 * largest, "past_cache": past})


@bandwidth.figure
def draw_bandwidth(measured: Any, before: Any = None) -> Any:
    """Draw GB/s against the bytes of one array, both logarithmic; dotted lines are cache sizes."""
    texts, drawn = ["read plus written"], []
    if any(point.values.get("past_cache") is False for point in measured.where("largest")):
        texts.append("the largest is NOT well past the last-level cache: not the memory's own rate")
    for run in (measured, before) if before is not None else (measured,):
        rates = {p.case["array_bytes"]: p.gb_per_s for p in run.where("copy") if p.gb_per_s}
        drawn.append(primitives.Series("", [*rates], [*rates.values()], before=bool(drawn)))
    sizes, rates = drawn[0].x, drawn[0].y
    title = f"{primitives.number(rates[-1])} GB/s from memory" if rates else ""
    figure, (axes,) = page(measured, [(0.3, 2.3)], *texts, before=before, title=title)
    ticks = {size: primitives.size_text(size) for size in sizes}
    primitives.lines(axes, drawn, "size of one array", "GB/s", log="xy", xticks=ticks,
                     say=lambda rate: f"{rate:.3g}")  # fmt: skip
    for name, size in [pair for p in measured.where("caches") for pair in p.values.items()]:
        if sizes and sizes[0] < size < sizes[-1]:
            axes.axvline(size, color="#888888", linestyle=":", linewidth=1, zorder=0)
            axes.text(size, 1.0, f"{name} {primitives.size_text(size)}", ha="center", va="bottom",
                      fontsize=8, transform=axes.get_xaxis_transform())  # fmt: skip
    return figure


@experiment(
    "elementwise operations one after another: each is a pass over memory",
    mib=knob(None, "size of the array", kind="int", unit="MiB", low=1, high=1 << 17,
             auto="well past the last-level cache"),
    lengths=knob([1, 2, 4, 8], "operations one after another", low=1, high=1 << 12),
)  # fmt: skip
def eager_chain(job: Any, bench: Any) -> None:
    """Time multiplications in turn, in place on one array: each reads and writes every number."""
    n = bench.past_cache_elements(job.mib)
    x = bench.random_array(n)

    def chain(length: int) -> None:
        for step in range(length):
            x.mul_(1.0001 if step % 2 else 0.9999)  # neither to zero nor to infinity

    for length in job.lengths:
        bench.time(lambda length=length: chain(length), of="in turn", bytes=8 * length * n,
                   launches=length, operations=length)  # fmt: skip
