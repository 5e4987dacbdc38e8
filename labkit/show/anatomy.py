"""A GPU beside the CPU, drawn from the data sheet: `lk.anatomy("A100")`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.analysis.datasheets import CARDS, card
from labkit.results.machine import Machine
from labkit.results.machine import machine as ask
from labkit.results.shipped import entry
from labkit.show.run_header import BOLD, GREY
from labkit.show.style import COMPUTE, COPY, INSTRUMENT, WAIT, drawable, our_style, page

PCIE_GB_PER_S = {3: 15.75, 4: 31.5, 5: 63.0}  # of sixteen lanes, each way, by generation
WARP, REGISTERS_KIB = 32, 256  # the same on all cards of the table
INCH_PER_GB_S = 2.1 / 4800  # of the pipes: an H200's memory fills the block's 2.1 inches


@our_style
def anatomy(name: str | None = None, machine: Machine | None = None) -> Figure:
    """Draw a card's SMs, warps, caches and memory beside the CPU and RAM of this machine.

    `name` is one of the data sheets' cards, or a part of its name; None: the card that is here, or
    else an A100. Counts and the width of the pipes are to scale, and nothing else is.
    """
    here = machine or ask()
    own = card(here.name) if name is None else None
    sheets = [sheet for _, sheet in CARDS]
    found = [own] if own else [s for s in sheets if (name or "A100").lower() in s.name.lower()]
    if not found:
        raise ValueError(f"Unknown card {name!r}; available: {', '.join(s.name for s in sheets)}.")
    sheet = found[0]
    chip = entry("chips.json", sheet.name, "card")
    cores, link = here.cpu_cores or 1, PCIE_GB_PER_S[chip["pcie"]]
    threads = chip["sms"] * chip["warps"] * WARP
    title = (
        f"{cores} core{'s' * (cores > 1)} beside {chip['sms']} SMs with {threads:,} threads in "
        f"flight; memory {sheet.gb_per_s / link:.0f}x as fast as the way to it"
    )
    scale = "to scale: counts of cores, SMs and threads, and the purple pipes' width; nothing else"
    header = [(title, BOLD), (scale, {}), (here.line, GREY), (chip["source"], GREY)]
    figure, (axes,) = page(header, [(0.1, 4.5)], left_in=0.12, bottom_in=0.08)
    axes.set(xlim=(0, 7.98), ylim=(0, 4.5))
    axes.axis("off")
    ram = f"RAM {here.ram_gib:,.0f} GiB" if here.ram_gib else "RAM"
    cpu = drawable(here.cpu_name or here.name, 24)
    block(axes, (0.02, 0.02, 1.9, 4.4), "#F4F4F4", f"CPU: {cpu}", "top")
    grid(axes, (0.15, 1.5, 1.65, 2.5), cores)
    block(axes, (0.15, 0.15, 1.65, 1.0), WAIT, ram)
    block(axes, (2.95, 0.02, 4.98, 4.4), "#F4F4F4", f"GPU: {sheet.name}", "top")
    note(axes, 3.1, 4.03, f"{chip['sms']} SMs")
    corner = grid(axes, (3.1, 2.3, 2.1, 1.55), chip["sms"])
    block(axes, (3.1, 1.78, 2.1, 0.34), INSTRUMENT, f"L2 cache {chip['l2_mib']} MiB")
    wide = sheet.gb_per_s * INCH_PER_GB_S
    pipe(axes, (4.15 - wide / 2, 1.15, wide, 0.63))
    memory = f"VRAM {chip['memory_gb']} GB\n{sheet.gb_per_s:,.0f} GB/s to the L2"
    block(axes, (3.1, 0.15, 2.1, 1.0), WAIT, memory)
    pipe(axes, (1.8, 0.4, 1.3, link * INCH_PER_GB_S))
    note(axes, 2.44, 0.72, f"PCIe {chip['pcie']} x16\n{link:.0f} GB/s\neach way", ha="center")
    block(axes, (5.75, 0.15, 2.05, 3.95), "white", "one SM, enlarged", "top")
    for y in (0.15, 4.1):
        axes.plot([corner[0], 5.75], [corner[1], y], color="#777777", linewidth=0.8)
    x, y = np.meshgrid(np.arange(chip["warps"]), np.arange(WARP))
    axes.plot(5.88 + x * 1.8 / 64, 2.32 + y * 1.48 / WARP, "s", ms=1.4, mew=0, color=COMPUTE)
    note(axes, 5.85, 2.12, f"{chip['warps']} warps (columns) of {WARP} threads")
    note(axes, 5.85, 1.88, f"at work: {chip['lanes']} FP32 lanes,")
    note(axes, 5.85, 1.68, f"{chip['tensor_cores']} Tensor Cores")
    block(axes, (5.85, 0.95, 1.85, 0.5), INSTRUMENT, f"registers {REGISTERS_KIB} KiB")
    block(axes, (5.85, 0.3, 1.85, 0.5), INSTRUMENT, f"L1 + shared {chip['l1_kib']} KiB")
    return figure


def block(axes: Axes, box: Any, colour: str, text: str, va: str = "center") -> None:
    """Draw a box (x, y, width, height; inches) with a text in its middle or at its top."""
    x, y, wide, high = box
    line = {"edgecolor": "#555555", "linewidth": 0.6}
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=colour, **line))
    axes.text(x + wide / 2, y + (high / 2 if va == "center" else high - 0.08), text, ha="center",
              va=va, parse_math=False)  # fmt: skip


def pipe(axes: Axes, box: Any) -> None:
    """Draw a way for data, (x, y, width, height) in inches."""
    axes.add_patch(Rectangle(box[:2], *box[2:], facecolor=COPY, linewidth=0, zorder=3))


def grid(axes: Axes, box: Any, count: int) -> tuple[float, float]:
    """Fill a box with `count` squares, as large as they can be; return where the first row ends."""
    x, y, wide, high = box
    columns = max(range(1, count + 1), key=lambda n: min(wide / n, high / -(-count // n)))
    side = min(wide / columns, high / -(-count // columns))
    x += (wide - columns * side) / 2
    for n in range(count):
        row, column = divmod(n, columns)
        at = x + column * side, y + high - (row + 1) * side
        axes.add_patch(Rectangle(at, 0.82 * side, 0.82 * side, facecolor=COMPUTE, linewidth=0))
    return x + (columns - 0.18) * side, y + high - 0.6 * side


def note(axes: Axes, x: float, y: float, text: str, ha: str = "left") -> None:
    """Write a text at a place, in inches."""
    axes.text(x, y, text, ha=ha, va="center", fontsize=8, parse_math=False)
