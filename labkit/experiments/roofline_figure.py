"""The roofline as a picture: FLOP/s against FLOP a byte, both logarithmic."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.experiments.measured_header import measured_header
from labkit.experiments.roofline_points import Placed, Roof, Roofline
from labkit.results.measurements import Measurements
from labkit.show.boxes import number
from labkit.show.style import (
    BEFORE,
    LEGEND_ROW_IN,
    LINES,
    legend_above,
    legend_columns,
    literal,
    our_style,
    page,
)

MARKERS = {"add": "s", "layer norm": "D", "convolution": "^", "matmul": "o"}
HEIGHT_IN = 4.0
LABEL_IN = (0.062, 0.145)  # width of a character and height of a line, at 8 points
SLOPE = "#000000"
SAME_IN = 0.5  # two points of one name that are nearer than this share a label
GAP_IN = 0.09  # between a point and its label
PLACES = ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, 1), (0, -1), (1, -2), (-1, 2),
          (1, 2), (-1, -2), (0, 2), (0, -2), (1, -3), (-1, 3), (1, 3), (-1, -3))  # fmt: skip


@our_style
def draw(measured: Measurements, before: Measurements | None = None) -> Figure:
    """Draw the measured roofs and the operations under them; `before` in grey.

    A data sheet's peaks are dashed, and only of the cards whose data sheet is cited.
    """
    line = Roofline(measured)
    old = Roofline(before) if before is not None else None
    texts = ["under the slope: limited by memory; under the flat: by compute"]
    if line.past_cache is False:
        texts.append("the copy was NOT well past the last-level cache: the slope may be a cache's")
    header = measured_header(measured, before, *texts)
    if line.datasheet:
        header.append((f"dashed: data sheet of {line.datasheet.name}, {line.datasheet.source}", {}))
    kinds = list(line.roof.tflop_per_s)
    legend = _legend(line, kinds, old)
    columns = legend_columns([handle.get_label() for handle in legend])
    above = 0.14 + LEGEND_ROW_IN * -(-len(legend) // columns)
    figure, (axes,) = page(header, [(above, HEIGHT_IN)], left_in=0.75)
    _frame(axes, line, old)
    _draw_roofs(axes, line.roof, kinds, [_colour(kind, kinds) for kind in kinds])
    if line.datasheet:
        promised = {k: v for k, v in line.datasheet.tflop_per_s.items() if k in kinds}
        roof = Roof(line.datasheet.gb_per_s, promised)
        _draw_roofs(axes, roof, list(promised), [_colour(k, kinds) for k in promised], dashed=True)
    if old is not None:
        _draw_roofs(axes, old.roof, list(old.roof.tflop_per_s), [BEFORE] * len(kinds), thin=True)
        _scatter(axes, old.points, lambda _point: BEFORE, 18)
    _scatter(axes, line.points, lambda point: _colour(point.kind, kinds), 42)
    _label_points(axes, line)
    legend_above(axes, legend, columns)
    return figure


def _legend(line: Roofline, kinds: list[str], old: Roofline | None) -> list[Line2D]:
    entries = [(f"memory: {number(line.roof.gb_per_s)} GB/s", SLOPE)]
    entries += [
        (f"{kind}: {_rate(line.roof.tflop_per_s[kind])}, ridge at "
         f"{number(line.roof.ridge(kind))} FLOP/byte", _colour(kind, kinds)) for kind in kinds
    ]  # fmt: skip
    entries += [] if old is None else [("before", BEFORE)]
    return [Line2D([], [], color=colour, label=label) for label, colour in entries]


def _colour(kind: str, kinds: list[str]) -> str:
    return LINES[kinds.index(kind) % len(LINES)]


def _frame(axes: Axes, line: Roofline, old: Roofline | None) -> None:
    both = [line] if old is None else [line, old]
    points = [point for each in both for point in each.points]
    ridges = [each.roof.ridge(kind) for each in both for kind in each.roof.tflop_per_s]
    low = min([p.intensity for p in points] + ridges) / 3
    high = max([p.intensity for p in points] + ridges) * 6
    rates = [p.tflop_per_s * 1e3 for p in points]
    tops = [rate * 1e3 for each in both for rate in each.roof.tflop_per_s.values()]
    if line.datasheet:
        tops += [v * 1e3 for k, v in line.datasheet.tflop_per_s.items()
                 if k in line.roof.tflop_per_s]  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    floor = min(rates + [each.roof.gb_per_s * low * 2 for each in both])
    axes.set_ylim(floor / 1.8, max(tops) * 2.2)
    axes.set_xlabel("arithmetic intensity: FLOP per byte that has to move")
    axes.set_ylabel("GFLOP/s (10⁹ FLOP a second)")
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_roofs(
    axes: Axes, roof: Roof, kinds: list[str], colours: list[str], dashed: bool = False,
    thin: bool = False,
) -> None:  # fmt: skip
    """Draw the slope up to the last ridge, and a flat roof from each format's ridge on."""
    low, high = axes.get_xlim()
    look = {"linewidth": 0.8 if thin else 1 if dashed else 1.6, "zorder": 2}
    look |= {"linestyle": (0, (4, 3))} if dashed else {}
    end = min(high, max(roof.ridge(kind) for kind in kinds)) if kinds else high
    slope = colours[0] if thin else SLOPE
    axes.plot([low, end], [roof.gb_per_s * low, roof.gb_per_s * end], color=slope, **look)
    for place, (kind, colour) in enumerate(zip(kinds, colours, strict=False)):
        start = max(low, roof.ridge(kind))
        if not thin and not dashed:  # two formats may have one roof: both are to be seen
            look["linewidth"] = 1.6 + 1.2 * (len(kinds) - 1 - place)
        axes.plot([start, high], [roof.tflop_per_s[kind] * 1e3] * 2, color=colour, **look)


def _scatter(axes: Axes, points: list[Placed], colour: object, size: float) -> None:
    for point in points:
        axes.scatter(point.intensity, point.tflop_per_s * 1e3, s=size, color=colour(point),
                     marker=MARKERS.get(point.name, "o"), edgecolors="white", linewidths=0.7,
                     zorder=4)  # fmt: skip


def _rate(tflop_per_s: float) -> str:
    if tflop_per_s < 1:
        return f"{number(tflop_per_s * 1e3)} GFLOP/s"
    return f"{number(tflop_per_s)} TFLOP/s"


def _label_points(axes: Axes, line: Roofline) -> None:
    """Name each point at the free place nearest to it; once where the same size is close by."""
    dpi, area = axes.figure.dpi, axes.get_window_extent()
    spots = [axes.transData.transform((p.intensity, p.tflop_per_s * 1e3)) for p in line.points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots] + _along_roofs(axes, line.roof)
    labelled: dict[str, list] = {}
    for point, (x, y) in sorted(zip(line.points, spots, strict=True), key=lambda pair: pair[1][0]):
        text = _text(point)
        if any(np.hypot(x - a, y - b) < SAME_IN * dpi for a, b in labelled.get(text, [])):
            continue
        labelled.setdefault(text, []).append((x, y))
        wide, tall = LABEL_IN[0] * len(text) * dpi, LABEL_IN[1] * dpi
        boxes = [(place, _box(x, y, wide, tall, place, GAP_IN * dpi)) for place in PLACES]
        free = [
            (place, box) for place, box in boxes
            if not any(_overlap(box, other) for other in taken)
            and area.x0 <= box[0] and box[2] <= area.x1 and area.y0 <= box[1] and box[3] <= area.y1
        ]  # fmt: skip
        place, box = (free or boxes)[0]
        taken.append(box)
        _write(axes, point, text, box, pointing=abs(place[1]) > 1)


def _text(point: Placed) -> str:
    return " ".join(filter(None, [point.name, str(point.case.get("n", ""))]))


def _write(axes: Axes, point: Placed, text: str, box: tuple[float, ...], pointing: bool) -> None:
    middle = axes.transData.inverted().transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
    line = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6}
    label = axes.annotate(
        text, (point.intensity, point.tflop_per_s * 1e3), tuple(middle), textcoords="data",
        ha="center", va="center", fontsize=8, zorder=5, arrowprops=line if pointing else None,
    )  # fmt: skip
    literal(label)


def _along_roofs(axes: Axes, roof: Roof) -> list[tuple[float, float, float, float]]:
    """Little boxes along the roofs, in pixels: no name is written across a line."""
    xs = np.geomspace(*axes.get_xlim(), 200)
    boxes = []
    for kind in roof.tflop_per_s:
        ys = [roof.attainable(x, kind) * 1e3 for x in xs]
        for x, y in axes.transData.transform(np.column_stack([xs, ys])):
            boxes.append((x - 2, y - 2, x + 2, y + 2))
    return boxes


def _box(
    x: float, y: float, wide: float, tall: float, place: tuple[int, int], gap: float
) -> tuple[float, float, float, float]:
    side, level = place
    left = x + gap if side > 0 else x - gap - wide if side < 0 else x - wide / 2
    middle = y + level * (tall + (gap if side == 0 else 0))
    return left, middle - tall / 2, left + wide, middle + tall / 2


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
