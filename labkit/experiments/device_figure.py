"""A drawing of the device that is here: its cores or SMs, its caches, its memory, its bus."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.experiments.bandwidth_figure import size_text
from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.boxes import arrow, box, canvas, cell, say
from labkit.show.style import COMPUTE, our_style, page

LEFT_IN, WIDE = 0.12, 7.9  # inches
MEMORY, CACHE, CORE, BUS = "#CFE3F1", "#F5E6C4", "#CDE9DF", "#EEEEEE"
MOST_DRAWN = 256  # cores or SMs; above that the picture says so
MEANING = {"gpu": "a GPU: many SMs, each with many warps of threads in flight",
           "cpu": "a CPU: few cores, each quick on its own"}  # fmt: skip


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw the device from what it tells; what it does not tell is left out."""
    found = measured.where("device")
    facts = found[0].values if found else {}
    machine = measured.machine
    tall = 3.3
    title = MEANING.get(machine.kind, "the device")
    header = measured_header(measured, None, title=title)
    figure, (axes,) = page(header, [(0.1, tall)], left_in=LEFT_IN, bottom_in=0.1)
    canvas(axes, WIDE, tall)
    if machine.kind == "gpu":
        _gpu(axes, machine, facts)
    else:
        _cpu(axes, machine, facts)
    return figure


def _cpu(axes: Axes, machine: Any, facts: dict[str, Any]) -> None:
    cores = facts.get("cores") or machine.cpu_cores
    caches = facts.get("caches") or {}
    own = [f"{name} {size_text(size)}" for name, size in caches.items() if name != "L3"]
    box(axes, 0.05, 1.62, WIDE - 0.1, 1.62, "white")
    if cores and cores <= 8:
        wide = (WIDE - 0.4) / cores
        for i in range(cores):
            box(axes, 0.26 + i * wide, 1.74, wide - 0.12, 1.36, CORE)
            text = [f"core {i + 1}", facts.get("vectors") and f"vectors: {facts['vectors']}", *own]
            say(axes, 0.2 + (i + 0.5) * wide, 2.42, "\n".join(filter(None, text)))
    elif cores:
        _many(axes, cores, 0.2, 1.74, 4.9, 1.36)
        text = [f"{cores} cores", facts.get("vectors") and f"vectors: {facts['vectors']}"]
        text += [f"each: {', '.join(own)}" if own else ""]
        say(axes, 6.5, 2.42, "\n".join(filter(None, text)))
    if "L3" in caches:
        box(axes, 0.05, 1.08, WIDE - 0.1, 0.42, CACHE)
        say(axes, WIDE / 2, 1.29, f"L3 cache {size_text(caches['L3'])}, as the system reports it")
    box(axes, 0.05, 0.2, WIDE - 0.1, 0.6, MEMORY)
    ram = f"{machine.ram_gib:.1f} GiB" if machine.ram_gib else ""
    say(axes, WIDE / 2, 0.5, f"RAM {ram}".strip())
    arrow(axes, (WIDE / 2, 0.8), (WIDE / 2, 1.08 if "L3" in caches else 1.62))
    if "L3" in caches:
        arrow(axes, (WIDE / 2, 1.5), (WIDE / 2, 1.62))


def _gpu(axes: Axes, machine: Any, facts: dict[str, Any]) -> None:
    sms = facts.get("sms") or machine.sm_count
    box(axes, 1.75, 0.2, WIDE - 1.8, 3.04, "white")
    if sms:
        _many(axes, sms, 1.9, 1.5, 3.2, 1.36)
        say(axes, 3.5, 3.03, f"{sms} SMs")
    box(axes, 5.35, 1.5, 2.4, 1.36, CORE)
    say(axes, 6.55, 3.03, "one of them")
    say(axes, 6.55, 2.18, "\n".join(_inside(facts)) or "torch does not tell its inside")
    if l2 := (facts.get("caches") or {}).get("L2"):
        box(axes, 1.9, 0.98, WIDE - 2.05, 0.36, CACHE)
        say(axes, (1.9 + WIDE) / 2, 1.16, f"L2 cache {size_text(l2)}")
    box(axes, 1.9, 0.3, WIDE - 2.05, 0.54, MEMORY)
    parts = [machine.memory_gib and f"{machine.memory_gib:.0f} GiB",
             facts.get("bus_bits") and f"{facts['bus_bits']} bits wide"]  # fmt: skip
    memory = ", ".join(filter(None, parts))
    say(axes, (1.9 + WIDE) / 2, 0.57, f"device memory (VRAM) {memory}".strip())
    box(axes, 0.05, 0.3, 0.95, 2.56, BUS)
    ram = f"\n{machine.ram_gib:.0f} GiB" if machine.ram_gib else ""
    cores = f"\n\nCPU\n{machine.cpu_cores} cores" if machine.cpu_cores else ""
    say(axes, 0.525, 1.58, f"RAM{ram}{cores}")
    arrow(axes, (1.0, 0.57), (1.9, 0.57))
    say(axes, 1.4, 0.95, _bus(machine, facts), fontsize=7.5)


def _inside(facts: dict[str, Any]) -> list[str]:
    lines = []
    if facts.get("warps_per_sm") and facts.get("warp"):
        lines.append(f"{facts['warps_per_sm']} warps of {facts['warp']} threads in flight")
    if facts.get("registers_per_sm"):
        lines.append(f"{facts['registers_per_sm']:,} registers")
    if facts.get("shared_bytes_per_sm"):
        lines.append(f"{size_text(facts['shared_bytes_per_sm'])} shared memory")
    return lines


def _bus(machine: Any, facts: dict[str, Any]) -> str:
    if facts.get("pcie_generation") and facts.get("pcie_width"):
        return f"PCIe {facts['pcie_generation']}\nx{facts['pcie_width']}"
    return f"PCIe\n{machine.pcie}" if machine.pcie else "bus"


def _many(axes: Axes, count: int, x: float, y: float, wide: float, tall: float) -> None:
    """Fill an area with `count` little squares."""
    drawn = min(count, MOST_DRAWN)
    columns = math.ceil(math.sqrt(drawn * wide / tall))
    rows = math.ceil(drawn / columns)
    dx, dy = wide / columns, tall / rows
    for i in range(drawn):
        left, top = x + (i % columns) * dx, y + tall - (i // columns + 1) * dy
        cell(axes, left + 0.1 * dx, top + 0.1 * dy, 0.8 * dx, 0.8 * dy, COMPUTE)
    if drawn < count:
        say(axes, x + wide / 2, y - 0.08, f"{drawn} of {count} drawn", fontsize=7.5)
