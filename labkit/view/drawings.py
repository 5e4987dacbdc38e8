"""Drawings with explanations: `lk.annotated("nvidia-smi")`, and `lk.anatomy("A100")`.

The first shows what a usual instrument printed, the second a GPU beside the CPU. What is drawn and
where stands in `labkit/data`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.diagnosis.datasheets import CARDS, card
from labkit.diagnosis.instruments import instruments
from labkit.results.hardware import Machine
from labkit.results.hardware import machine as ask
from labkit.results.library import recorded
from labkit.results.shipped import entries, entry
from labkit.view.run_header import BOLD, GREY, recorded_line
from labkit.view.style import COMPUTE, COPY, INSIDE, INSTRUMENT, LINES, drawable, our_style, page

SIZE, WIDE_IN, HIGH_IN = 8, 0.0669, 0.16  # of a character of the fixed-width font: points, inches
PCIE_GB_PER_S = {3: 15.75, 4: 31.5, 5: 63.0}  # of sixteen lanes, each way, by generation
WARP = 32
INCH_PER_GB_S = 2.1 / 4800  # of the pipes: an H200's memory fills the block's 2.1 inches


@our_style
def annotated(name: str = "nvidia-smi") -> Figure:
    """Draw a real output of "nvidia-smi", "profiler", "nsys" or "wandb", its parts numbered.

    It says where it is from: PUBLISHED by others, or RECORDED.
    """
    view = entry("annotated.json", name, "view")
    run = recorded(view["run"]) if "run" in view else None
    lanes = view.get("lanes", [])
    notes = view.get("notes") or [[lane, note] for lane, _, note in lanes]
    header = [*recorded_line([run] if run else []), (view["title"], BOLD)]
    header += [(f"{n}  {part}: {text}", {}) for n, (part, text) in enumerate(notes, 1)]
    header.append((view["source"], GREY))
    tall = HIGH_IN * len(view["text"]) if "text" in view else 0.34 * len(lanes) or 1.8
    left = 0.3 if "text" in view else 2.2 if lanes else 1.0
    figure, (axes,) = page(header, [(0.2, tall)], left, 0.1 if "text" in view else 0.5)
    if "text" in view:
        write(axes, view["text"], [part for part, _ in notes])
    elif run is not None:
        shown = next(r for r in instruments(run) if r.name.startswith(view["reading"]))
        axes.plot(shown.times_s, 100 * shown.shares, marker=".", color=INSTRUMENT)
        axes.set(ylim=(0, 105), xlabel="Relative Time (s)", ylabel="CPU utilization (%)")
        axes.grid(color="#E6E6E6", linewidth=0.8)
    else:
        for row, (_, spans, _) in enumerate(lanes):
            bars = [(start, end - start) for start, end in spans]
            axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=LINES[row % len(LINES)])
        names = [f"{n}  {lane}" for n, (lane, _, _) in enumerate(lanes, 1)]
        axes.set_yticks(range(len(lanes)), names)
        axes.set(ylim=(len(lanes) - 0.5, -0.5), xlabel="ms", xlim=(0, lanes[0][1][-1][1]))
    return figure


def write(axes: Axes, lines: list[str], parts: list[str]) -> None:
    """Write lines in a fixed-width font; frame each part where it is first, with its number."""
    axes.axis("off")
    axes.set(xlim=(0, axes.get_position().width * 9), ylim=(len(lines) * HIGH_IN, 0))
    font = {"family": "DejaVu Sans Mono", "fontsize": SIZE, "va": "center", "parse_math": False}
    for row, line in enumerate(lines):
        for piece in re.finditer(r"\S{1,6}", line):  # hinting stretches a whole line, by the dpi
            axes.text(piece.start() * WIDE_IN, (row + 0.5) * HIGH_IN, piece.group(), **font)
    for n, part in enumerate(parts, 1):
        row = next(row for row, line in enumerate(lines) if part in line)
        x, y = lines[row].index(part) * WIDE_IN, row * HIGH_IN
        box = Rectangle((x - 0.02, y), len(part) * WIDE_IN + 0.04, HIGH_IN, facecolor="none",
                        edgecolor="#E69F00", linewidth=0.8, zorder=0)  # fmt: skip
        axes.add_patch(box)
        axes.text(x - 0.03, y + 0.02, n, fontsize=7, fontweight="bold", ha="right")


@our_style
def anatomy(name: str | None = None, machine: Machine | None = None) -> Figure:
    """Draw a card's SMs, warps, caches and memory beside the CPU and RAM of this machine.

    `name` is one of the data sheets' cards, or a part of its name; None: the card that is here, or
    else an A100. Counts and the width of the pipes are to scale, and nothing else is.
    """
    here, sheets = machine or ask(), [sheet for _, sheet in CARDS]
    own = card(here.name) if name is None else None
    wanted = (name or "A100").lower()
    found = [own] if own else [s for s in sheets if wanted in s.name.lower()]
    found.sort(key=lambda sheet: sheet.name.lower() != wanted)  # "L4" is not meant as L40S
    if not found:
        raise ValueError(f"Unknown card {name!r}; available: {', '.join(s.name for s in sheets)}.")
    sheet, layout = found[0], entries("anatomy.json")  # in inches, from the lower left corner
    chip = {"pcie_lanes": 16} | entry("chips.json", sheet.name, "card")
    link = PCIE_GB_PER_S[chip["pcie"]] * chip["pcie_lanes"] / 16
    cores, sms = here.cpu_cores or 1, chip["sms"]
    title = (
        f"{cores} core{'s' * (cores > 1)} beside {sms} SMs with {sms * chip['warps'] * WARP:,} "
        f"threads in flight; memory {sheet.gb_per_s / link:.0f}x as fast as the way to it"
    )
    scale = "to scale: counts of cores, SMs and threads, and the purple pipes' width; nothing else"
    header = [(title, BOLD), (scale, {}), (here.line, GREY), (chip["source"], GREY)]
    figure, (axes,) = page(header, [(0.1, 4.5)], left_in=0.12, bottom_in=0.08)
    axes.set(xlim=(0, 7.98), ylim=(0, 4.5))
    axes.axis("off")
    ram = f"RAM {here.ram_gib:,.0f} GiB" if here.ram_gib else "RAM"
    told = {"cpu": drawable(here.cpu_name or here.name, 24), "ram": ram, "name": sheet.name}
    told |= chip | {"link": link, "gb_per_s": sheet.gb_per_s}
    for x, y, wide, high, colour, text, va in layout["boxes"]:
        edge = {"edgecolor": "#555555", "linewidth": 0.6}
        axes.add_patch(Rectangle((x, y), wide, high, facecolor=colour, **edge))
        look = {"va": va, "ha": "center", "color": INSIDE if va == "center" else "black"}
        height = y + (high / 2 if va == "center" else high - 0.08)
        axes.text(x + wide / 2, height, text.format(**told), parse_math=False, **look)
    for x, y, text, ha in layout["notes"]:
        axes.text(x, y, text.format(**told), ha=ha, va="center", fontsize=8)
    grid(axes, (0.15, 1.5, 1.65, 2.5), cores)
    corner = grid(axes, (3.1, 2.3, 2.1, 1.55), sms)
    for y in (0.15, 4.1):
        axes.plot([corner[0], 5.75], [corner[1], y], color="#777777", linewidth=0.8)
    x, y = np.meshgrid(np.arange(chip["warps"]), np.arange(WARP))
    axes.plot(5.88 + x * 1.8 / 64, 2.32 + y * 1.48 / WARP, "s", ms=1.4, mew=0, color=COMPUTE)
    wide, thin = (rate * INCH_PER_GB_S for rate in (sheet.gb_per_s, link))
    for corner, *size in (((4.15 - wide / 2, 1.15), wide, 0.63), ((1.8, 0.4), 1.3, thin)):
        axes.add_patch(Rectangle(corner, *size, facecolor=COPY, linewidth=0, zorder=3))
    return figure


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
