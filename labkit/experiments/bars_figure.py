"""Measurements as bars: one for each point, by its rate or its time, the run before in grey."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.experiments.measured_header import case_of, measured_header
from labkit.results.measurements import Measurement, Measurements
from labkit.show.style import BEFORE, LINES, drawable, literal, our_style, page

LEFT_IN = 3.2  # for the names of the points
ROW_IN, THIN_IN = 0.34, 0.25
MANY = 10  # points from which the bars are thin
ROOM = 1.45  # the axis is so many times the longest bar: the rest is for the text behind it

# What a point is measured by, best first: (of a point of these seconds, unit, factor)
METRICS: list[tuple[str, str, Callable[[Measurement, float], float | None]]] = [
    ("GFLOP/s", "{} GFLOP/s", lambda p, s: p.flops / s / 1e9 if p.flops else None),
    ("GB/s", "{} GB/s", lambda p, s: p.bytes / s / 1e9 if p.bytes else None),
    ("ms", "{} ms", lambda _p, s: s * 1e3),
]


@our_style
def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw a bar per timed point: its rate where FLOPs or bytes are counted, else its time.

    Points that do not have what the first one is measured by are left out.

    The line through a bar's end is the interquartile range of its times; a grey mark is the same
    point of `before`.
    """
    timed = [point for point in measured if point.median_s]
    unit, shown, value = metric_of(timed)
    points = [point for point in timed if value(point, 1.0) is not None]
    panels = [(0.1, 0.1 + (ROW_IN if len(points) <= MANY else THIN_IN) * len(points))]
    panels = panels if points else []
    figure, axes = page(
        measured_header(measured, before, better_than(unit)), panels, left_in=LEFT_IN, bottom_in=0.5
    )
    if points:
        _draw_bars(axes[0], points, shown, value)
        if before is not None:
            _draw_before(axes[0], points, before, value)
        axes[0].set_xlabel(unit)
    return figure


def metric_of(points: list[Measurement]) -> tuple[str, str, Callable]:
    """Return the best metric that the first point has: (unit, format, of a point and seconds)."""
    return next(m for m in METRICS if not points or m[2](points[0], 1.0) is not None)


def three_digits(value: float) -> str:
    """Write a number with three digits: 1,250, 34.2 or 0.118."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def better_than(unit: str) -> str:
    """Say which way is good."""
    return "shorter is better" if unit == "ms" else "longer is better"


def _draw_bars(axes: Axes, points: list[Measurement], shown: str, value: Callable) -> None:
    kinds = list(dict.fromkeys(point.of for point in points))
    values = [value(point, point.median_s) for point in points]
    for row, (point, middle) in enumerate(zip(points, values, strict=True)):
        colour = LINES[kinds.index(point.of) % len(LINES)]
        axes.barh(row, middle, height=0.62, color=colour, alpha=0.85, linewidth=0)
        low, high = sorted(value(point, s) for s in np.percentile(point.seconds, [25, 75]))
        axes.plot([low, high], [row, row], color="black", linewidth=1.2)
        launches = (point.values.get("launch_share") or 0) > 0.5  # on a GPU
        doubts = (" (launches)" if launches else "") + (" (noisy)" if point.noisy else "")
        text = shown.format(three_digits(middle)) + doubts
        axes.annotate(
            text, (max(middle, high), row), (5, 0), textcoords="offset points", va="center"
        )
    names = [drawable(name_of(point), 48) for point in points]
    axes.set_yticks(range(len(points)), names)
    for label in axes.get_yticklabels():
        literal(label)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.5, -0.5)
    axes.set_xlim(0, ROOM * max(values))


def _draw_before(
    axes: Axes, points: list[Measurement], before: Measurements, value: Callable
) -> None:
    for row, point in enumerate(points):
        then = [old for old in before.where(point.of) if old.case == point.case]
        then = then or _same_place(points, point, before)
        for old in then[:1]:
            x = value(old, old.median_s) if old.median_s else None
            if x is not None:
                axes.plot([x, x], [row - 0.4, row + 0.4], color=BEFORE, linewidth=2)
                axes.set_xlim(right=max(axes.get_xlim()[1], ROOM * x))


def _same_place(
    points: list[Measurement], point: Measurement, before: Measurements
) -> list[Measurement]:
    now, then = [p for p in points if p.of == point.of], before.where(point.of)
    return [then[now.index(point)]] if len(now) == len(then) else []


def name_of(point: Measurement) -> str:
    """What the point is called in a figure: the operation, and its case."""
    return ", ".join(filter(None, [point.of, case_of(point.case)]))
