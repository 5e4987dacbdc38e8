"""The device that is here: what it is made of, and what a busy meter says of a single thread."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import Any

from labkit.experiments.measure import bar_page, page, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, pynvml = Later("torch"), Later("pynvml")
machine, boxes = Later("labkit.bench.machine"), Later("labkit.show.primitives")

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
    with contextlib.suppress(pynvml.NVMLError):
        card = nvml_card(device)
        return {"pcie_generation": pynvml.nvmlDeviceGetMaxPcieLinkGeneration(card),
                "pcie_width": pynvml.nvmlDeviceGetMaxPcieLinkWidth(card)}  # fmt: skip
    return {"pcie_generation": None, "pcie_width": None}


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
    """Draw the device from what it tells: its parts from memory at the bottom to cores at the top.

    What it does not tell is left out.
    """
    kind, here = measured.machine.kind, measured.machine
    facts = measured.points[0].values
    caches = {name: primitives.size_text(n) for name, n in (facts.get("caches") or {}).items()}
    figure, (axes,) = page(measured, [(0.1, TALL)], title=MEANING.get(kind, "the device"),
                           left_in=0.12, bottom_in=0.1)  # fmt: skip
    boxes.canvas(axes, TALL)
    known = {name: value for name, value in facts.items() if value}
    if kind == "gpu":
        left, count, cores = 1.7, known.get("sms") or here.sm_count, "{sms} SMs"
        inside = ["one of them", "{warps_per_sm} warps of {warp} threads in flight",
                  "{registers_per_sm:,} registers", "{shared} shared memory"]  # fmt: skip
        last, memory = "L2", ["device memory (VRAM)", "{memory}", "{bus_bits} bits wide"]
    else:
        left, count, cores = 0.0, known.get("cores") or here.cpu_cores, "{cores} cores"
        inside = ["each", "vectors: {vectors}", "L1d {L1d}", "L2 {L2}"]
        last, memory = "L3", ["RAM", "{ram}"]
    known |= caches | {"sms": count, "cores": count}
    for name, gib in (("ram", here.ram_gib), ("memory", here.memory_gib)):
        known |= {name: f"{gib:.0f} GiB"} if gib else {}
    if size := known.get("shared_bytes_per_sm"):
        known["shared"] = primitives.size_text(size)
    boxes.box(axes, left, 1.08, WIDE - left, 2.16, "white")
    if count:
        _draw_many(axes, count, left + 0.15, 1.2, 3.4, 1.6)
        boxes.say(axes, left + 1.85, 3.03, cores.format(**known))
    boxes.box(axes, left + 3.75, 1.2, WIDE - left - 3.9, 1.6, CORE, "\n".join(_told(inside, known)))
    if last in caches:
        text = f"{last} cache {caches[last]}, as the system reports it"
        boxes.box(axes, left, 0.66, WIDE - left, 0.32, CACHE, text)
    boxes.box(axes, left, 0.1, WIDE - left, 0.46, MEMORY, ", ".join(_told(memory, known)))
    if kind == "gpu":
        host = ["CPU", f"{here.cpu_cores} cores", "RAM", "{ram}"]
        boxes.box(axes, 0, 0.1, 0.95, 3.14, BUS, "\n".join(_told(host, known)))
        boxes.arrow(axes, (0.95, 0.33), (left, 0.33))
        bus = _told(["PCIe {pcie_generation}", "x{pcie_width}"], known)
        boxes.say(axes, 1.33, 0.7, "\n".join(bus) or "bus", fontsize=7.5)
    return figure


def _told(texts: list[str], known: dict[str, Any]) -> list[str]:
    """Return the texts whose facts are known."""
    said = []
    for text in texts:
        with contextlib.suppress(KeyError):
            said.append(text.format(**known))
    return said


def _draw_many(axes: Any, count: int, x: float, y: float, wide: float, tall: float) -> None:
    """Fill an area with `count` little squares."""
    drawn = min(count, MOST_DRAWN)
    columns = math.ceil(math.sqrt(drawn * wide / tall))
    dx, dy = wide / columns, tall / math.ceil(drawn / columns)
    for i in range(drawn):
        left, top = x + (i % columns) * dx, y + tall - (i // columns + 1) * dy
        corners = [left, left + 0.8 * dx], [top, top + 0.8 * dy]
        axes.fill_between(corners[0], *corners[1], color=style.COMPUTE, linewidth=0)
    if drawn < count:
        boxes.say(axes, x + wide / 2, y - 0.06, f"{drawn} of {count} drawn", fontsize=7.5)


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
    a, b = torch.randn(2, N, N)
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
        values = {"meter": statistics.median(readings), "lanes": lanes, "used": 1 / lanes}
        bench.write("threads", values=values, threads=1)
    else:
        bench.skip("one thread", "NVML does not tell this card's utilization")


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
    label = "% of what the meter, or the device, can show"
    return bar_page(measured, rows, label, before=before, title=title, left_in=3.7)
