"""Copy bandwidth against the size of the array: the caches as steps, memory as the last stretch."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.style import BEFORE, LINES, our_style, page

UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@our_style
def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw GB/s against the bytes of one array, both logarithmic; dotted lines are cache sizes."""
    points = [p for p in measured.where("copy") if p.gb_per_s]
    texts = ["GB/s: read plus written; an array and its copy are twice the size shown"]
    largest = measured.where("largest")
    if largest and largest[0].values.get("past_cache") is False:
        texts.append("the largest is NOT well past the last-level cache: not the memory's own rate")
    panels = [(0.3, 2.3)] if points else []
    figure, axes = page(measured_header(measured, before, *texts), panels)
    if points:
        _draw_line(axes[0], measured, LINES[0], points)
        if before is not None:
            old = [p for p in before.where("copy") if p.gb_per_s]
            axes[0].plot(*_line(old), color=BEFORE, linewidth=1, marker="o", markersize=3, zorder=1)
        _draw_caches(axes[0], measured)
    return figure


def _line(points: list) -> tuple[list[float], list[float]]:
    return [p.case["array_bytes"] for p in points], [p.gb_per_s for p in points]


def _draw_line(axes: Axes, measured: Measurements, colour: str, points: list) -> None:
    sizes, rates = _line(points)
    axes.plot(sizes, rates, color=colour, marker="o", markersize=5, linewidth=1.4)
    for size, rate in zip(sizes, rates, strict=True):
        axes.annotate(f"{rate:.3g}", (size, rate), (0, 6), textcoords="offset points", ha="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
                      )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(min(rates) / 1.6, max(rates) * 1.8)
    axes.set_xticks(sizes, [size_text(size) for size in sizes])
    axes.minorticks_off()
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
             if min(rates) / 1.6 <= t <= max(rates) * 1.8]  # fmt: skip
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel("GB/s")
    axes.set_xlabel("size of one array")


def _draw_caches(axes: Axes, measured: Measurements) -> None:
    caches = measured.where("caches")
    low, high = axes.get_xlim()
    for name, size in (caches[0].values if caches else {}).items():
        if isinstance(size, (int, float)) and low < size < high:
            axes.axvline(size, color="#888888", linestyle=":", linewidth=1, zorder=0)
            axes.annotate(f"{name} {size_text(size)}", (size, 1.0), (0, 3), ha="center",
                          xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                          fontsize=8, color="#555555")  # fmt: skip


def size_text(size_bytes: float) -> str:
    """Write a number of bytes in the unit that suits it: 16 KiB."""
    for unit, scale in UNITS:
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:g} B"
