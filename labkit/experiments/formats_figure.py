"""The number formats: the range of each on one axis, and the rounding that was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.experiments.format_table import FORMATS
from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import ALARM, LINES, our_style, page

ROW = 0.42  # inches
NOTES = "stated by the format's bits; a ring: found on this device's tensors"


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw each format's range, from the smallest number above zero to the largest, and its step.

    Bars follow from the bits (`format_table`); rings are what halving a tensor on this device
    found. TF32 has no ring without Tensor Cores.
    """
    names = list(FORMATS)
    height = ROW * len(names)
    header = measured_header(measured, None, NOTES)
    figure, (span, step) = page(header, [(0.32, height), (0.75, height)])
    _draw_ranges(span, names, measured)
    _draw_steps(step, names, measured)
    for axes in (span, step):
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_xscale("log")
    return figure


def _draw_ranges(axes: Any, names: list[str], measured: Measurements) -> None:
    for row, name in enumerate(names):
        form, colour = FORMATS[name], LINES[row]
        axes.plot([form.smallest_normal, form.max], [row, row], color=colour, lw=9,
                  solid_capstyle="butt")  # fmt: skip
        axes.plot([form.smallest, form.smallest_normal], [row, row], color=colour, lw=9,
                  alpha=0.35, solid_capstyle="butt")  # fmt: skip
        found = measured.where("limits", format=name)
        if found and found[0].values.get("smallest"):
            axes.plot(found[0].values["smallest"], row, "o", mfc="white", mec=colour, ms=6, mew=1.5)
    axes.axvline(1.0, color="#999999", lw=0.8, ls=":")
    axes.set_xlim(1e-48, 1e42)
    axes.set_xlabel("size of a number (pale: below the normals, where digits are lost)")
    axes.set_title("range", loc="left")


def _draw_steps(axes: Any, names: list[str], measured: Measurements) -> None:
    for row, name in enumerate(names):
        half = FORMATS[name].eps / 2
        axes.plot([1e-9, half], [row, row], color=LINES[row], lw=9, solid_capstyle="butt")
        found = measured.where("rounding", format=name)
        worst = found[0].values.get("worst") if found else None
        if worst:
            axes.plot(worst, row, "o", mfc="white", mec=LINES[row], ms=6, mew=1.5)
        text = f"{FORMATS[name].digits:.1f} decimal digits"
        missing = "" if worst or name == "fp32" else " (not measured here)"
        axes.annotate(text + missing, (max(half, worst or 0), row), (9, 0),
                      textcoords="offset points", va="center",
                      color=ALARM if missing else "black")  # fmt: skip
    axes.set_xlim(1e-9, np.sqrt(10))
    axes.set_xlabel("largest relative error of rounding")
    axes.set_title("precision", loc="left")
