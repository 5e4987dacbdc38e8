"""The device that is here: what it is made of, and what a busy meter says of a single thread."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import Any

from labkit.experiments.measure import header, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, pynvml = Later("torch"), Later("pynvml")
machine, boxes = Later("labkit.bench.machine"), Later("labkit.show.boxes")

# Fact: the name torch has for it. Versions of torch differ in what they tell.
CARD = {
    "sms": "multi_processor_count",
    "threads_per_sm": "max_threads_per_multi_processor",
    "warp": "warp_size",
    "shared_bytes_per_sm": "shared_memory_per_multiprocessor",
    "registers_per_sm": "regs_per_multiprocessor",
    "bus_bits": "memory_bus_width",
}
N = 512  # of the matrix products on the CPU
TICKS = 2_000_000  # of a kernel of one thread: about a millisecond


@experiment("what the device is made of, as far as it tells")
def anatomy(job: Any, bench: Any) -> None:
    """Write the device's facts as values of one point, "device"; what is not told is None."""
    facts: dict[str, Any] = {}
    if bench.device.type == "cuda":
        card = torch.cuda.get_device_properties(bench.device)
        facts = {name: getattr(card, known, None) for name, known in CARD.items()}
        if facts["threads_per_sm"] and facts["warp"]:
            facts["warps_per_sm"] = facts["threads_per_sm"] // facts["warp"]
        facts |= pcie(bench.device)
    elif bench.on_cpu:
        vectors = None
        with contextlib.suppress(AttributeError):
            vectors = torch.backends.cpu.get_cpu_capability()  # "AVX512", "AVX2", "DEFAULT"
        threads = torch.get_num_threads()
        facts = {"cores": machine.cpu_cores(), "threads": threads, "vectors": vectors}
    else:
        bench.skip("device", f"torch tells nothing about the inside of {bench.device.type}")
    bench.write("device", values={**facts, "caches": bench.cache_bytes()}, kind=bench.device.type)


def pcie(device: Any) -> dict[str, Any]:
    """Return what the card's link to the host can do at most; an idle card may run it slower."""
    facts: dict[str, Any] = {"pcie_generation": None, "pcie_width": None}
    with contextlib.suppress(pynvml.NVMLError):
        card = nvml_card(device)
        facts["pcie_generation"] = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(card)
        facts["pcie_width"] = pynvml.nvmlDeviceGetMaxPcieLinkWidth(card)
    return facts


def nvml_card(device: Any) -> Any:
    """Return NVML's handle of a card."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(machine.card_uuid(device))


# -- its drawing -----------------------------------------------------------------------------------

WIDE, TALL = 7.9, 3.3  # inches
MEMORY, CACHE, CORE, BUS = "#CFE3F1", "#F5E6C4", "#CDE9DF", "#EEEEEE"
MOST_DRAWN = 256  # cores or SMs; above that the picture says so
MEANING = {"gpu": "a GPU: many SMs, each with many warps of threads in flight",
           "cpu": "a CPU: few cores, each quick on its own"}  # fmt: skip


@anatomy.figure
def draw_device(measured: Any) -> Any:
    """Draw the device from what it tells; what it does not tell is left out."""
    found = measured.where("device")
    facts = found[0].values if found else {}
    kind = measured.machine.kind
    lines = header(measured, title=MEANING.get(kind, "the device"))
    figure, (axes,) = style.page(lines, [(0.1, TALL)], left_in=0.12, bottom_in=0.1)
    boxes.canvas(axes, WIDE, TALL)
    sizes = {name: primitives.size_text(n) for name, n in (facts.get("caches") or {}).items()}
    (_draw_gpu if kind == "gpu" else _draw_cpu)(axes, measured.machine, facts, sizes)
    return figure


def _joined(*texts: str | None, by: str = "\n") -> str:
    return by.join(filter(None, texts))


def _draw_cpu(axes: Any, here: Any, facts: dict[str, Any], caches: dict[str, str]) -> None:
    cores = facts.get("cores") or here.cpu_cores or 0
    own = [f"{name} {size}" for name, size in caches.items() if name != "L3"]
    vectors = facts.get("vectors") and f"vectors: {facts['vectors']}"
    boxes.box(axes, 0.05, 1.62, WIDE - 0.1, 1.62, "white")
    if cores > 8:
        _draw_many(axes, cores, 0.2, 1.74, 4.9, 1.36)
        each = f"each: {', '.join(own)}" if own else ""
        boxes.say(axes, 6.5, 2.42, _joined(f"{cores} cores", vectors, each))
    wide = (WIDE - 0.4) / (cores or 1)
    for i in range(cores if cores <= 8 else 0):
        text = _joined(f"core {i + 1}", vectors, *own)
        boxes.box(axes, 0.26 + i * wide, 1.74, wide - 0.12, 1.36, CORE, text)
    if "L3" in caches:
        text = f"L3 cache {caches['L3']}, as the system reports it"
        boxes.box(axes, 0.05, 1.08, WIDE - 0.1, 0.42, CACHE, text)
        boxes.arrow(axes, (WIDE / 2, 1.5), (WIDE / 2, 1.62))
    ram = _joined("RAM", here.ram_gib and f"{here.ram_gib:.1f} GiB", by=" ")
    boxes.box(axes, 0.05, 0.2, WIDE - 0.1, 0.6, MEMORY, ram)
    boxes.arrow(axes, (WIDE / 2, 0.8), (WIDE / 2, 1.08 if "L3" in caches else 1.62))


def _draw_gpu(axes: Any, here: Any, facts: dict[str, Any], caches: dict[str, str]) -> None:
    boxes.box(axes, 1.75, 0.2, WIDE - 1.8, 3.04, "white")
    if sms := facts.get("sms") or here.sm_count:
        _draw_many(axes, sms, 1.9, 1.5, 3.2, 1.36)
        boxes.say(axes, 3.5, 3.03, f"{sms} SMs")
    warps, registers = facts.get("warps_per_sm"), facts.get("registers_per_sm")
    shared = facts.get("shared_bytes_per_sm")
    inside = _joined(
        warps and facts.get("warp") and f"{warps} warps of {facts['warp']} threads in flight",
        registers and f"{registers:,} registers",
        shared and f"{primitives.size_text(shared)} shared memory",
    )
    boxes.box(axes, 5.35, 1.5, 2.4, 1.36, CORE, inside or "torch does not tell its inside")
    boxes.say(axes, 6.55, 3.03, "one of them")
    if "L2" in caches:
        boxes.box(axes, 1.9, 0.98, WIDE - 2.05, 0.36, CACHE, f"L2 cache {caches['L2']}")
    memory = here.memory_gib and f"{here.memory_gib:.0f} GiB"
    wide = facts.get("bus_bits") and f"{facts['bus_bits']} bits wide"
    text = _joined("device memory (VRAM)", _joined(memory, wide, by=", "), by=" ")
    boxes.box(axes, 1.9, 0.3, WIDE - 2.05, 0.54, MEMORY, text)
    ram = here.ram_gib and f"{here.ram_gib:.0f} GiB"
    cores = here.cpu_cores and f"\nCPU\n{here.cpu_cores} cores"
    boxes.box(axes, 0.05, 0.3, 0.95, 2.56, BUS, _joined("RAM", ram, cores))
    boxes.arrow(axes, (1.0, 0.57), (1.9, 0.57))
    bus = f"PCIe\n{here.pcie}" if here.pcie else "bus"
    if facts.get("pcie_generation") and facts.get("pcie_width"):
        bus = f"PCIe {facts['pcie_generation']}\nx{facts['pcie_width']}"
    boxes.say(axes, 1.4, 0.95, bus, fontsize=7.5)


def _draw_many(axes: Any, count: int, x: float, y: float, wide: float, tall: float) -> None:
    """Fill an area with `count` little squares."""
    drawn = min(count, MOST_DRAWN)
    columns = math.ceil(math.sqrt(drawn * wide / tall))
    dx, dy = wide / columns, tall / math.ceil(drawn / columns)
    for i in range(drawn):
        left, top = x + (i % columns) * dx, y + tall - (i // columns + 1) * dy
        boxes.cell(axes, left + 0.1 * dx, top + 0.1 * dy, 0.8 * dx, 0.8 * dy, style.COMPUTE)
    if drawn < count:
        boxes.say(axes, x + wide / 2, y - 0.08, f"{drawn} of {count} drawn", fontsize=7.5)


# -- one thread ------------------------------------------------------------------------------------

METER = {"gpu": "NVML utilization, as nvidia-smi shows it", "cpu": "%CPU, as top shows it"}
LANES = {"gpu": "of the threads the card can hold", "cpu": "of the cores"}


@experiment(
    "a single thread, and what the usual meter says of it",
    seconds=knob(3.0, "how long the device is kept busy", unit="s", low=0.1, high=600),
)
def one_thread(job: Any, bench: Any) -> None:
    """Keep the device "busy" for `seconds` with a single thread, and read the usual meter.

    On a CUDA device `torch.cuda._sleep`, a kernel of one block with one thread that counts clock
    ticks; the meter is NVML's utilization, what nvidia-smi shows. On a CPU matrix products on one
    thread; the meter is the process's CPU time over wall time, what `top` shows as %CPU.
    """
    if bench.device.type == "cuda":
        one_on_card(job, bench)
    elif bench.on_cpu:
        one_and_all_cores(job, bench)
    else:
        bench.skip("one thread", f"no kernel of one thread for {bench.device.type}")


def one_and_all_cores(job: Any, bench: Any) -> None:
    """Read one thread and all of them by the meter, and by the work done."""
    before, cores = torch.get_num_threads(), machine.cpu_cores()
    a, b = torch.randn(N, N), torch.randn(N, N)
    try:
        for threads in dict.fromkeys([1, cores]):
            torch.set_num_threads(threads)
            a @ b  # warm-up: threads start
            wall, cpu, done = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - wall < job.seconds / 2:
                a @ b
                done += 1
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            values = {"meter": cpu / wall, "lanes": cores, "used": threads / cores}
            bench.write("threads", seconds=[wall / done], flops=2 * N**3, values=values,
                        threads=threads)  # fmt: skip
    finally:
        torch.set_num_threads(before)
    if cores == 1:
        bench.skip("all threads", "this machine has one core: one thread is all there is")


def one_on_card(job: Any, bench: Any) -> None:
    """Read one thread on the whole card by NVML's meter."""
    card = torch.cuda.get_device_properties(bench.device)
    lanes = card.multi_processor_count * card.max_threads_per_multi_processor
    readings = []
    started = time.perf_counter()
    with contextlib.suppress(pynvml.NVMLError):
        meter = nvml_card(bench.device)
        while (now := time.perf_counter() - started) < job.seconds:
            for _ in range(20):
                torch.cuda._sleep(TICKS)
            bench.synchronize()
            if now > job.seconds / 2:  # the meter's window has filled by then
                readings.append(pynvml.nvmlDeviceGetUtilizationRates(meter).gpu / 100)
    if not readings:
        bench.skip("one thread", "NVML does not tell this card's utilization")
        return
    values = {"meter": statistics.median(readings), "lanes": lanes, "used": 1 / lanes}
    bench.write("threads", values=values, threads=1)


@one_thread.figure
def draw_threads(measured: Any, before: Any = None) -> Any:
    """Draw, for one thread and for all, the meter's reading and the share of the device used."""
    kind, rows = measured.machine.kind, []
    for point in measured.where("threads"):
        who = "1 thread" if point.case.get("threads") == 1 else f"{point.case['threads']} threads"
        for key, names in (("meter", METER), ("used", LANES)):
            value, name = 100 * point.values[key], names.get(kind, key)
            text = f"{value:.3g} %" if value < 1 else f"{value:.0f} %"
            colour = style.INSTRUMENT if key == "meter" else style.COMPUTE
            rows.append(primitives.Bar(f"{who}: {name}", value, text, colour))
    texts = [row.text for row in rows] or ["nothing"] * 2
    title = f"the meter reads {texts[0]}, and {texts[1]} of the device is used"
    panels = [(0.1, primitives.rows_in(len(rows)))] if rows else []
    figure, axes = style.page(header(measured, before, title=title), panels, 3.7, 0.5)
    for each in axes:
        primitives.hbars(each, rows, "% of what the meter, or the device, can show")
    return figure
