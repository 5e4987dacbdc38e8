"""The device that is here: what it is made of, a single thread on it, and matrix products.

FLOPs: 2 n^3 a product of (n, n) matrices. Bytes: 3 n^2 numbers, each matrix moved once.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from labkit import quotas
from labkit.experiments.measure import formats, machine, page, primitives, style, torch
from labkit.spec import experiment, knob
from labkit.wiring import Later

pynvml = Later("pynvml")

# Fact: the name torch has for it. Versions of torch differ in what they tell.
CARD = {
    "sms": "multi_processor_count", "threads_per_sm": "max_threads_per_multi_processor",
    "warp": "warp_size", "shared_bytes_per_sm": "shared_memory_per_multiprocessor",
    "registers_per_sm": "regs_per_multiprocessor", "bus_bits": "memory_bus_width",
}  # fmt: skip
COUNTS = {
    "cores": "cores", "threads": "threads that compute", "sms": "SMs", "warp": "threads in a warp",
    "warps_per_sm": "warps in flight in an SM", "bus_bits": "bits of the memory bus",
    "pcie_generation": "PCIe generation", "pcie_width": "PCIe lanes",
}  # fmt: skip
N = 512  # of the matrix products on the CPU
TICKS = 2_000_000  # of a kernel of one thread: about a millisecond

# Of matrix products
ALL = ("fp64", "fp32", "tf32", "fp16", "bf16")
USUAL = ALL[1:]
SIDE = {"kind": "int", "low": 1, "high": 1 << 16, "auto": "chosen for the device"}
OFFSETS = (-64, -32, -8, -1, 0, 1, 8, 32, 64)
MULTIPLES = (64, 32, 8)
SMALL_COUNT = 32  # of the small products beside the slices
ROWS = 64  # of a product, on which its error is measured


@experiment("what the device is made of, as far as it tells")
def anatomy(job: Any, bench: Any) -> None:
    """Write the device's facts as values of one point, "device"; what is not told is None."""
    facts: dict[str, Any] = {}
    if bench.device.type == "cuda":
        card = torch.cuda.get_device_properties(bench.device)
        facts = {name: getattr(card, known, None) for name, known in CARD.items()}
        if facts["threads_per_sm"] and facts["warp"]:
            facts["warps_per_sm"] = facts["threads_per_sm"] // facts["warp"]
        with contextlib.suppress(pynvml.NVMLError):  # at most; an idle card may run it slower
            card = nvml_card(bench.device)
            facts["pcie_generation"] = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(card)
            facts["pcie_width"] = pynvml.nvmlDeviceGetMaxPcieLinkWidth(card)
    elif bench.on_cpu:
        facts = {"cores": quotas.cpu_cores().count, "threads": torch.get_num_threads(),
                 "vectors": torch.backends.cpu.get_cpu_capability()}  # fmt: skip
    else:
        bench.skip("device", f"torch tells nothing about the inside of {bench.device.type}")
    bench.write("device", values={**facts, "caches": bench.cache_bytes()}, kind=bench.device.type)


def nvml_card(device: Any) -> Any:
    """Return NVML's handle of a card."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(machine.card_uuid(device))


@anatomy.figure
def draw_device(measured: Any) -> Any:
    """Draw how much there is to compute with at the same moment, and how large each memory is."""
    here, told = measured.machine, {k: v for k, v in measured.points[0].values.items() if v}
    sizes = {"registers of an SM": 4 * told.get("registers_per_sm", 0),
             "shared memory of an SM": told.get("shared_bytes_per_sm")}  # fmt: skip
    sizes |= {f"{name} cache": size for name, size in told.get("caches", {}).items()}
    sizes["RAM"] = (here.ram_gib or 0) * 2**30
    title = f"a CPU: few cores, each quick on its own, vectors: {told.get('vectors', 'unknown')}"
    if here.kind == "gpu":
        sizes["VRAM"] = (here.memory_gib or 0) * 2**30
        title = "a GPU: many SMs, each with many warps of threads in flight"
    many = [primitives.Bar(name, told[key], f"{told[key]:,}", style.COMPUTE)
            for key, name in COUNTS.items() if key in told]  # fmt: skip
    memories = [primitives.Bar(name, size, primitives.size_text(size))
                for name, size in sizes.items() if size]  # fmt: skip
    panels = [(0.1, primitives.rows_in(len(many))), (0.5, primitives.rows_in(len(memories)))]
    figure, (upper, lower) = page(measured, panels, title=title, left_in=1.9)
    primitives.hbars(upper, many)
    primitives.hbars(lower, memories, "bytes (logarithmic)")
    lower.set(xscale="log", xlim=(2**10, 2**44), xticks=[2**10, 2**20, 2**30, 2**40])
    lower.set_xticklabels(["1 KiB", "1 MiB", "1 GiB", "1 TiB"])
    lower.minorticks_off()
    return figure


SHOWN = {  # kind of device: what the meter is called, and what there is of
    "gpu": ("NVML utilization, as nvidia-smi shows it", "of the threads the card can hold"),
    "cpu": ("%CPU, as top shows it", "of the cores"),
}


@experiment(
    "a single thread, and what the usual meter says of it",
    seconds=knob(3.0, "how long the device is kept busy", unit="s", low=0.1, high=600),
)
def one_thread(job: Any, bench: Any) -> None:
    """Keep the device "busy" for `seconds` with a single thread, and read the usual meter."""
    if bench.device.type == "cuda":
        return one_on_card(job, bench)
    if not bench.on_cpu:
        return bench.skip("one thread", f"no kernel of one thread for {bench.device.type}")
    before, cores = torch.get_num_threads(), quotas.cpu_cores().count
    a, b = torch.randn(2, N, N)
    for threads in dict.fromkeys([1, cores]):
        torch.set_num_threads(threads)
        a @ b  # warm-up: threads start
        wall, cpu, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - wall < job.seconds / 2:
            a @ b
            done += 1
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        values, flops = {"meter": cpu / wall, "used": threads / cores}, 2 * N**3
        bench.write("threads", seconds=[wall / done], flops=flops, values=values, threads=threads)
    torch.set_num_threads(before)
    if cores == 1:
        bench.skip("all threads", "this machine has one core: one thread is all there is")


def one_on_card(job: Any, bench: Any) -> None:
    """Read one thread on the whole card by NVML's meter."""
    card = torch.cuda.get_device_properties(bench.device)
    lanes = card.multi_processor_count * card.max_threads_per_multi_processor
    readings, started = [], time.perf_counter()
    with contextlib.suppress(pynvml.NVMLError):
        meter = nvml_card(bench.device)
        while (now := time.perf_counter() - started) < job.seconds:
            for _ in range(20):
                torch.cuda._sleep(TICKS)
            bench.synchronize()
            if now > job.seconds / 2:  # the meter's window has filled by then
                readings.append(pynvml.nvmlDeviceGetUtilizationRates(meter).gpu / 100)
    if readings:
        values = {"meter": statistics.median(readings), "used": 1 / lanes}
        bench.write("threads", values=values, threads=1)
    else:
        bench.skip("one thread", "NVML does not tell this card's utilization")


@one_thread.figure
def draw_threads(measured: Any) -> Any:
    """Draw, for one thread and for all, the meter's reading and the share of the device used."""
    names, inks = SHOWN.get(measured.machine.kind, SHOWN["cpu"]), (style.INSTRUMENT, style.COMPUTE)
    rows = []
    for point in measured.where("threads"):
        who = f"{point.case['threads']} thread{'s' * (point.case['threads'] > 1)}"
        for key, name, colour in zip(("meter", "used"), names, inks, strict=True):
            value = 100 * point.values[key]
            text = f"{value:.3g} %" if value < 1 else f"{value:.0f} %"
            rows.append(primitives.Bar(f"{who}: {name}", value, text, colour))
    texts = [row.text for row in rows] or ["nothing"] * 2
    title = f"the meter reads {texts[0]}, and {texts[1]} of the device is used"
    figure, (axes,) = page(measured, [(0.1, primitives.rows_in(len(rows)))], title=title,
                           left_in=3.7, bottom_in=0.5)  # fmt: skip
    primitives.hbars(axes, rows, "% of what the meter, or the device, can show")
    return figure


@experiment(
    "a thousand small products one after another against one batched product",
    n=knob(64, "rows of a matrix", low=1, high=1 << 16),
    count=knob(1000, "matrices", low=1, high=1 << 20),
)
def matrix_products(job: Any, bench: Any) -> None:
    """Time `count` products of (n, n) matrices in a Python loop and as one `torch.bmm`."""
    a, b = torch.randn(2, job.count, job.n, job.n, device=bench.device)  # (count, n, n) each
    flops = 2 * job.count * job.n**3
    pairs = list(zip(a.unbind(), b.unbind(), strict=True))
    bench.time(lambda: [x @ y for x, y in pairs], of="one by one", flops=flops,
               launches=job.count, n=job.n)  # fmt: skip
    bench.time(lambda: torch.bmm(a, b), of="batched", flops=flops, launches=1, n=job.n)


@experiment(
    "the rate of a large matrix product in each number format",
    n=knob(None, "rows of a matrix", **SIDE),
    formats=knob(None, "number formats", kind="str", choices=ALL, each=True, auto="all"),
)
def matrix_rates(job: Any, bench: Any) -> None:
    """Time a product of (n, n) matrices in each of `formats`, without `n` the largest sensible."""
    for name in bench.usable(job.formats or ALL):
        bench.stage(f"matrix product in {name}")
        time_product(bench, name, job.n or side(bench, name, largest=True), of=name)


@experiment(
    "one matrix product at once, the same in slices, and 32 small ones",
    n=knob(None, "rows of a matrix", **SIDE),
    slices=knob([32, 1024], "slices of the rows", low=1, high=1 << 16),
    small=knob(32, "rows of a small matrix", low=1, high=1 << 12),
)
def matrix_slices(job: Any, bench: Any) -> None:
    """Time A @ B of (n, n) matrices at once and in slices of A's rows; and small products."""
    n = job.n or side(bench, "fp32")
    a, b = torch.randn(2, n, n, device=bench.device)  # (n, n) each
    out, mm = torch.empty_like(a), torch.mm
    flops = 2 * n**3
    for count in (1, *job.slices):
        if not 1 <= count <= n:
            bench.skip(f"{count} slices", f"there are {n} rows: give 2 to {n} slices")
            continue
        rows = list(zip(a.chunk(count), out.chunk(count), strict=True))
        of = "in slices" if count > 1 else "at once"
        bench.time(lambda rows=rows: [mm(part, b, out=into) for part, into in rows], of=of,
                   flops=flops, launches=len(rows), n=n, slices=len(rows))  # fmt: skip
    small = job.small
    pairs = [torch.randn(2, small, small, device=bench.device) for _ in range(SMALL_COUNT)]
    bench.time(lambda: [x @ y for x, y in pairs], of=f"{SMALL_COUNT} small ones",
               flops=SMALL_COUNT * 2 * small**3, launches=SMALL_COUNT, n=small)  # fmt: skip


@experiment(
    "matrix products of sizes around a round number",
    around=knob(None, "rows in the middle of the sizes", **(SIDE | {"low": 65})),
    formats=knob(["fp32", "fp16", "bf16"], "number formats", choices=ALL),
)
def matrix_sizes(job: Any, bench: Any) -> None:
    """Time (n, n) products for n around `around`; `multiple` is what divides n, of MULTIPLES."""
    names = bench.usable(job.formats)
    around = job.around or max((side(bench, name) for name in names), default=None)
    for name in names:
        for done, offset in enumerate(OFFSETS):
            bench.stage(f"sizes in {name}", done, len(OFFSETS))
            n = around + offset
            multiple = next((m for m in MULTIPLES if n % m == 0), 1)
            time_product(bench, name, n, of=name, multiple=multiple)


@experiment("one matrix product in each number format", n=knob(None, "rows of a matrix", **SIDE))
def precision_matmul(job: Any, bench: Any) -> None:
    """Time an (n, n) product in each format that this device has, and its error against FP64."""
    names, ways = bench.usable(USUAL), {}
    n = job.n or max(side(bench, name) for name in names)
    exact = torch.randn(2, n, n, dtype=torch.float64)
    for name in names:
        a, b = exact.to(bench.device, formats.FORMATS[name][0])
        ways[name] = lambda a=a, b=b: a @ b
    bench.stage("matrix products: " + ", ".join(ways))
    for name, seconds in bench.in_turn(ways, setting=formats.using).items():
        size = 3 * n * n * formats.BYTES[name]
        bench.write("matmul", seconds=seconds, flops=2 * n**3, bytes=size, precision=name)
    for name, work in ways.items():
        with formats.using(name):
            values = {"relative": relative_error(work(), exact)}
        bench.write("error", precision=name, values=values)


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative error of the first rows of `result`."""
    truth = exact[0, :ROWS] @ exact[1]
    return ((result[:ROWS].double().cpu() - truth).norm() / truth.norm()).item()


def product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a product of two (n, n) matrices as a function, its result in memory that is there."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))  # (n, n)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def time_product(bench: Any, name: str, n: int, *, of: str, **case: Any) -> None:
    """Time one (n, n) product in a format and write it."""
    with formats.using(name) as dtype:
        bench.time(product(n, dtype, bench.device), of=of, flops=2 * n**3, launches=1,
                   bytes=3 * n * n * formats.BYTES[name], n=n, **case)  # fmt: skip


def side(bench: Any, name: str, largest: bool = False) -> int:
    """Return the n whose product is more than its launch, or the largest that is not too long."""
    launches = {"launches": math.inf} if largest else {}
    with formats.using(name) as dtype:
        return bench.fitting(lambda n: product(n, dtype, bench.device), **launches)
