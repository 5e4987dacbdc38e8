"""The figure of what accumulation saves and costs: memory, and samples/s, by micro-batch."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from labkit.experiments.measured_header import measured_header
from labkit.experiments.memory_estimate import PARTS, measured
from labkit.experiments.memory_parts_figure import COLOURS
from labkit.results.measurements import Measurements
from labkit.show.style import LINES, legend_above, our_style, page

MIB = 2**20


@our_style
def draw(measurements: Measurements, before: Measurements | None = None) -> Figure:
    """Draw memory by part, and samples/s, against the size of the micro-batch."""
    memory = measurements.where("memory")
    if not memory:
        return page(measured_header(measurements, before), [])[0]
    effective = memory[0].case["effective"]
    title = f"one update from {effective} samples, in micro-batches"
    figure, (upper, lower) = page(
        measured_header(measurements, before, memory[0].values["how"], title=title),
        [(0.24, 1.6), (0.22, 1.6)],
        bottom_in=0.62,
    )
    _draw_memory(upper, memory)
    _draw_speed(lower, measurements, before)
    names = [f"{p.case['micro']}\n({p.case['steps']}x)" for p in memory]
    upper.set_xticks(range(len(memory)), [""] * len(memory))
    lower.set_xticks(range(len(memory)), names)
    lower.set_xlabel("micro-batch, samples (how many of them make one update)", labelpad=2)
    for axes in (upper, lower):
        axes.set_xlim(-0.6, len(memory) - 0.4)
    return figure


def _draw_memory(axes: Axes, memory: list) -> None:
    bottoms = [0.0] * len(memory)
    for part in PARTS:
        heights = [getattr(measured(point), part) / MIB for point in memory]
        axes.bar(range(len(memory)), heights, 0.62, bottom=bottoms, color=COLOURS[part])
        bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
    for x, total in enumerate(bottoms):
        axes.annotate(f"{total:.3g}", (x, total), (0, 3), textcoords="offset points", ha="center")
    axes.set_ylim(0, 1.15 * max(bottoms))
    axes.set_ylabel("memory, MiB")
    legend_above(axes, [Patch(color=COLOURS[part], label=part) for part in PARTS])


def _draw_speed(axes: Axes, measurements: Measurements, before: Measurements | None) -> None:
    for run, style in ((before, {"color": "#999999", "linewidth": 1}),
                       (measurements, {"color": LINES[0], "linewidth": 1.5})):  # fmt: skip
        points = [p for p in run.where("update") if p.median_s] if run is not None else []
        rates = [p.case["effective"] / p.median_s for p in points]
        axes.plot(range(len(rates)), rates, "o-", markersize=5, **style)
    for x, rate in enumerate(rates):
        axes.annotate(f"{rate:,.0f}", (x, rate), (0, 6), textcoords="offset points", ha="center")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.2 * max(rates, default=1))
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_ylabel("samples/s")
