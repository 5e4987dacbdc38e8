"""What the meter says against what is at work, as two bars a case."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import COMPUTE, INSTRUMENT, our_style, page

METER = {"gpu": "NVML utilization, as nvidia-smi shows it", "cpu": "%CPU, as top shows it"}
LANES = {"gpu": "of the threads the card can hold", "cpu": "of the cores"}
ROW_IN = 0.34


@our_style
def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw, for one thread and for all, the meter's reading and the share of the device used."""
    points = [point for point in measured.where("threads") if "meter" in point.values]
    kind = measured.machine.kind
    rows = [row for point in points for row in _rows(point, kind)]
    panels = [(0.1, 0.1 + ROW_IN * len(rows))] if rows else []
    header = measured_header(measured, before)
    figure, axes = page(header, panels, left_in=3.7, bottom_in=0.5)
    if rows:
        names, values, colours = zip(*rows, strict=True)
        axes[0].barh(range(len(rows)), values, color=colours, height=0.62)
        for row, value in enumerate(values):
            axes[0].annotate(f"{value:.3g} %" if value < 1 else f"{value:.0f} %", (value, row),
                             (5, 0), textcoords="offset points", va="center")  # fmt: skip
        axes[0].set_yticks(range(len(rows)), names)
        axes[0].tick_params(axis="y", length=0)
        axes[0].set_ylim(len(rows) - 0.5, -0.5)
        axes[0].set_xlim(0, max(110.0, *values) * 1.12)
        axes[0].xaxis.set_major_formatter(PercentFormatter(100, decimals=0))
    return figure


def _rows(point: Any, kind: str) -> list[tuple[str, float, str]]:
    threads = point.case.get("threads")
    who = "1 thread" if threads == 1 else f"{threads} threads"
    return [
        (f"{who}: {METER.get(kind, 'the meter')}", 100 * point.values["meter"], INSTRUMENT),
        (f"{who}: {LANES.get(kind, 'of the device')}", 100 * point.values["used"], COMPUTE),
    ]
