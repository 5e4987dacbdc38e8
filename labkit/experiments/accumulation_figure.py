"""The figure of accumulation's exactness: how far each update is from the large batch's."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import ALARM, COMPUTE, legend_above, our_style, page

LEFT_IN = 2.7
ROW_IN = 0.3
FLOOR = 1e-18  # where a difference of exactly 0 is drawn


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw the relative error of the update on a logarithmic axis: as it is done, and cured."""
    rows = _rows(measured)
    header = measured_header(measured, None, "update = plain SGD's: lr x gradient")
    panels = [(0.24, 0.1 + ROW_IN * len(rows))] if rows else []
    figure, axes = page(header, panels, left_in=LEFT_IN)
    if rows:
        _draw_rows(axes[0], rows)
    return figure


def _rows(measured: Measurements) -> list[tuple[str, float | None, float | None, str]]:
    """(name, error of the mistake, error done right, how) for every point."""
    rows = [
        (f"{p.case['model']}, {p.case['dtype']}", None, p.values["error"], "")
        for p in measured.where("equivalence")
    ]
    return rows + [
        (p.case["name"], p.values["error"], p.values["cured"], p.values["cure"])
        for p in measured.where("mistake")
    ]


def _draw_rows(axes: Axes, rows: list[tuple[str, float | None, float | None, str]]) -> None:
    for y, (_, wrong, right, cure) in enumerate(rows):
        if wrong is not None and right is not None:
            axes.plot([max(right, FLOOR), wrong], [y, y], color="#CCCCCC", linewidth=1.2, zorder=1)
        if right is not None:
            axes.plot(max(right, FLOOR), y, "o", color=COMPUTE, markersize=7)
            _name(axes, max(right, FLOOR), y, f"{right:.0e}" if right else "0", cure)
        if wrong is not None:
            axes.plot(wrong, y, "X", color=ALARM, markersize=7)
            _name(axes, wrong, y, f"{wrong:.1e}")
    for limit in (1e-6, 1e-14):
        axes.axvline(limit, color="#999999", linewidth=0.9, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(FLOOR / 3, 1e3)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("norm of the difference / norm of the large batch's update")
    handles = [
        Line2D([], [], color=ALARM, marker="X", linestyle="", label="as the mistake has it"),
        Line2D([], [], color=COMPUTE, marker="o", linestyle="", label="done right"),
        Line2D([], [], color="#999999", linestyle=":", label="1e-14 (FP64) and 1e-6 (FP32)"),
    ]
    legend_above(axes, handles)


def _name(axes: Axes, x: float, y: float, text: str, cure: str = "") -> None:
    words = f"{text} ({cure})" if cure else text
    axes.annotate(
        words, (x, y), (9, 0), textcoords="offset points", va="center", fontsize=7.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip
