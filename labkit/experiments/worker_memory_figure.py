"""The workers' private memory along one pass over the dataset, kept in two ways."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import LINES, legend_above, our_style, page

MIB = 2**20


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw private memory of all workers together (MiB) against the share of the data read."""
    kinds = list(dict.fromkeys(point.of for point in measured))
    if not kinds:
        return page(measured_header(measured), [])[0]
    figure, (axes,) = page(measured_header(measured), [(0.32, 2.2)])
    handles = []
    for kind, colour in zip(kinds, LINES, strict=False):
        points = measured.where(kind)
        x = [point.case["read"] for point in points]
        y = [point.values["private_bytes"] / MIB for point in points]
        axes.plot(x, y, "o-", color=colour, markersize=4)
        handles.append(Line2D([], [], color=colour, marker="o", label=kind))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of the dataset read in this epoch")
    axes.set_ylabel("private memory, MiB")
    legend_above(axes, handles)
    return figure
