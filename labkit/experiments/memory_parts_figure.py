"""The figure of what fills the memory: predicted beside measured, part by part."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.experiments.measured_header import measured_header
from labkit.experiments.memory_estimate import PARTS, MemoryParts, measured, predict
from labkit.results.measurements import Measurements
from labkit.show.style import legend_above, literal, our_style, page

COLOURS = dict(zip(PARTS, ("#0072B2", "#E69F00", "#AA4499", "#009E73"), strict=True))
LEFT_IN = 2.3
ROW_IN = 0.5
BAR = 0.36
MIB = 2**20


@our_style
def draw(measured_: Measurements) -> Figure:
    """Draw two stacked bars per model and batch: predicted (hatched) over measured."""
    points = [point for point in measured_ if point.values.get("weights_bytes") is not None]
    how = {point.values["how"] for point in points}
    panels = [(0.22, 0.1 + ROW_IN * len(points))] if points else []
    header = measured_header(measured_, None, *[f"measured: {text}" for text in sorted(how)])
    figure, axes = page(header, panels, left_in=LEFT_IN)
    if points:
        _draw_rows(axes[0], points)
    return figure


def _draw_rows(axes: Axes, points: list[Any]) -> None:
    longest = max(max(predict(p.values).total, measured(p).total) for p in points) / MIB
    for row, point in enumerate(points):
        said, seen = predict(point.values), measured(point)
        _stack(axes, row - BAR / 2, said, "///", f"predicted {said.total / MIB:.4g} MiB")
        ratio = f"measured {seen.total / MIB:.4g} MiB"
        peak = point.values.get("peak_bytes")
        if peak:
            axes.plot([peak / MIB] * 2, [row, row + BAR], color="black", linewidth=1.5)
            ratio += f", peak {peak / MIB:.4g}"
            longest = max(longest, peak / MIB)
        _stack(axes, row + BAR / 2, seen, None, ratio, beyond=(peak or 0) / MIB)
    names = [f"{p.case['model']}, batch {p.case['batch_size']}" for p in points]
    axes.set_yticks(range(len(points)), names)
    for label in axes.get_yticklabels():
        literal(label)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.45, -0.55)
    axes.set_xlim(0, 1.42 * longest)
    axes.set_xlabel("memory of one training step, MiB (hatched: predicted; plain: measured)")
    patches = [Patch(color=COLOURS[part], label=part) for part in PARTS]
    legend_above(axes, patches)


def _stack(
    axes: Axes, y: float, parts: MemoryParts, hatch: str | None, text: str, beyond: float = 0
) -> None:
    left = 0.0
    for part in PARTS:
        width = getattr(parts, part) / MIB
        axes.barh(
            y, width, left=left, height=BAR, color=COLOURS[part], hatch=hatch,
            alpha=0.55 if hatch else 1.0, edgecolor="white", linewidth=0,
        )  # fmt: skip
        left += width
    axes.annotate(
        text, (max(left, beyond), y), (5, 0), textcoords="offset points", va="center", fontsize=7.5
    )
