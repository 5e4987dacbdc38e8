"""`lk.annotated("nvidia-smi")`: what a usual instrument printed, its parts numbered and explained.

What is drawn is in `labkit/data/annotated.json`.
"""

from __future__ import annotations

import re

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.diagnosis.instruments import instruments
from labkit.results.library import recorded
from labkit.results.shipped import entry
from labkit.view.run_header import BOLD, GREY, recorded_line
from labkit.view.style import INSTRUMENT, LINES, our_style, page

SIZE, WIDE_IN, HIGH_IN = 8, 0.0669, 0.16  # of a character of the fixed-width font: points, inches


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
