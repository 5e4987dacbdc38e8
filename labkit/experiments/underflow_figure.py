"""Gradients that vanish: where they lie against FP16's range, the losses, the scaler at work."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.experiments.format_table import FP16
from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurement, Measurements
from labkit.show.style import ALARM, LINES, legend_above, our_style, page

DASHES = ("-", "--", "-", ":", "-.", "-")


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw the gradient's sizes, the loss of every case, and the scale of the case too high."""
    cases = measured.where("training")
    panels = [(0.34, 1.15), (0.85, 1.6), (0.62, 0.9)]
    figure, (sizes, losses, scale) = page(measured_header(measured), panels)
    _draw_sizes(sizes, measured)
    _draw_losses(losses, cases)
    _draw_scale(scale, [p for p in cases if any(p.values.get("skipped", []))])
    return figure


def _draw_sizes(axes: Any, measured: Measurements) -> None:
    found = measured.where("training", case="fp32")
    if found:
        exponents, shares = found[0].values["exponents"]
        axes.bar(exponents, shares, width=0.85, color=LINES[0], align="edge")
    smallest, normal = np.log2(FP16.smallest), np.log2(FP16.smallest_normal)
    axes.axvspan(-60, smallest - 1, color=ALARM, alpha=0.12, lw=0)
    axes.axvline(normal, color="#555555", lw=1, ls=":")
    top = 1.25 * axes.get_ylim()[1]
    axes.set_ylim(0, top)
    axes.text(smallest - 1.5, top * 0.97, "becomes 0 in fp16", ha="right", va="top", color=ALARM)
    axes.text((smallest + normal) / 2, top * 0.97, "digits lost", ha="center", va="top")
    axes.text(normal + 0.4, top * 0.97, "all digits in fp16", ha="left", va="top")
    axes.set_xlim(-50, 2)
    axes.set_ylabel("share")
    axes.set_xlabel("log2 of the gradient at the output, first step, in fp32")


def _draw_losses(axes: Any, cases: list[Measurement]) -> None:
    handles = []
    for i, point in enumerate(cases):
        loss = np.array([np.nan if v is None else v for v in point.values["loss"]], float)
        style = {"color": LINES[i], "ls": DASHES[i % len(DASHES)], "lw": 1.6}
        axes.plot(loss, **style)
        if np.isnan(loss).any():
            last = max(int(np.argmax(np.isnan(loss))) - 1, 0)
            axes.plot(last, loss[last], "X", color=ALARM, ms=9, zorder=5)
            axes.annotate(
                "NaN from here on", (last, loss[last]), (12, 5),
                textcoords="offset points", color=ALARM,
            )  # fmt: skip
        handles.append(Line2D([], [], label=point.case["case"], **style))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.6 * high)
    axes.set_ylabel("loss (m²)")
    axes.set_xlabel("step")
    legend_above(axes, handles, columns=3)


def _draw_scale(axes: Any, cases: list[Measurement]) -> None:
    for point in cases:
        scale = np.log2(np.array(point.values["scale"], float))
        steps = np.arange(len(scale))
        axes.step(steps, scale, where="post", color=LINES[4], lw=1.4)
        skipped = np.array(point.values["skipped"], bool)
        axes.plot(steps[skipped], scale[skipped], "x", color=ALARM, ms=6, mew=1.6)
    axes.set_ylabel("log2 of the scale")
    axes.set_xlabel('step of the case "scaler too high" (×: the update was skipped)')
