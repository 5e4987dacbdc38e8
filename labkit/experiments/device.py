"""The device that is here: what it is made of, and what a busy meter says of a single thread."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

from labkit.experiments.measure import page, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, pynvml, machine = Later("torch"), Later("pynvml"), Later("labkit.bench.machine")

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
        facts = {"cores": machine.cpu_cores(), "threads": torch.get_num_threads(),
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


SHOWN = {  # kind of device: how the meter is called, and what there is of
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
    before, cores = torch.get_num_threads(), machine.cpu_cores()
    a, b = torch.randn(2, N, N)
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
