"""The roofline: which limit an operation is under, and how far below it; its figure.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. Attainable FLOP/s = min(compute roof, bandwidth x intensity),
with the arithmetic intensity in FLOP a byte moved. Here both roofs are measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.analysis.datasheets import Card, card
from labkit.experiments.measure import header, primitives, style
from labkit.experiments.roofline import roofline as measuring
from labkit.results.measurements import Measurement, Measurements
from labkit.results.result import Result
from labkit.results.table import Table

FAR_BELOW = 0.25  # share of the roof under which the roof is no explanation


@dataclass(frozen=True)
class Roof:
    """A device's limits: memory in GB/s (10^9 byte/s) and compute in TFLOP/s (10^12) per format."""

    gb_per_s: float
    tflop_per_s: dict[str, float]

    def ridge(self, kind: str) -> float:
        """Return the intensity, FLOP/byte, from which a format's compute roof is the limit."""
        return self.tflop_per_s[kind] * 1e3 / self.gb_per_s

    def attainable(self, intensity: float, kind: str) -> float:
        """Return the most TFLOP/s that the roofs allow at `intensity` FLOP/byte."""
        return min(self.tflop_per_s[kind], self.gb_per_s * intensity / 1e3)

    def regime(self, intensity: float, kind: str) -> str:
        """Return which roof is the lower one at `intensity`: "memory" or "compute"."""
        return "memory" if intensity < self.ridge(kind) else "compute"


@dataclass(frozen=True)
class Placed:
    """One operation under the roofs. `of_roof` is above 1 where caches spare it the memory."""

    name: str
    kind: str  # the format, whose compute roof counts
    intensity: float  # FLOP/byte
    tflop_per_s: float
    attainable: float  # TFLOP/s
    regime: str
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def of_roof(self) -> float:
        """What it reached of what the roofs allow, 1 = all."""
        return self.tflop_per_s / self.attainable

    @property
    def verdict(self) -> str:
        """The regime in words; far below both roofs neither of them is what holds it back."""
        if self.of_roof < FAR_BELOW:
            return f"{self.regime} side, far below: overhead, not a roof"
        return f"{self.regime} bound"

    @property
    def text(self) -> str:
        """What the operation is called: its name and size."""
        return f"{self.name} {self.case['n']}" if "n" in self.case else self.name


class Roofline(Result):
    """A device's measured roofs, and operations under them."""

    def __init__(self, measured: Measurements):
        """Read the roofs and the operations of a "roofline" experiment.

        Raises LookupError where a roof is missing: a run that failed, or was stopped too early.
        """
        self.measured, self.machine = measured, measured.machine
        self.recorded = measured.recorded
        self.roof = roofs(measured)
        self.points = [p for point in measured if (p := place(point, self.roof)) is not None]
        # whether the bandwidth is that of memory, if known
        arrays = measured.where("arrays")
        self.past_cache: bool | None = arrays[-1].values.get("past_cache") if arrays else None
        self.datasheet: Card | None = card(self.machine.name)

    def one(self, name: str, **case: Any) -> Placed:
        """Return the operation of this name and case; raises LookupError where there is no one."""
        named = (point for point in self.points if point.name == name)
        found = [point for point in named if case.items() <= point.case.items()]
        if len(found) != 1:
            raise LookupError(f"roofline: {len(found)} operations {name!r} {case or ''}".strip())
        return found[0]

    def plot(self, **drawing: Any) -> Any:
        """Draw it as a matplotlib Figure."""
        return self.measured.plot(**drawing)

    def to_dict(self) -> dict[str, Any]:
        """Return the roofs and the operations as JSON types."""
        points = [vars(p) | {"of_roof": p.of_roof, "verdict": p.verdict} for p in self.points]
        return {"gb_per_s": self.roof.gb_per_s, "tflop_per_s": self.roof.tflop_per_s,
                "machine": self.machine.to_dict(), "points": points}  # fmt: skip

    def table(self) -> Table:
        """Return the operations: name, intensity, rate, share of the roof, regime."""
        rows = [
            (f"{p.text}, {p.kind}", f"{p.intensity:.3g} FLOP/byte",
             f"{p.tflop_per_s * 1e3:,.4g} GFLOP/s", f"{p.of_roof:.0%} of the roof", p.verdict)
            for p in self.points
        ]  # fmt: skip
        mark = f"RECORDED on {self.machine.name}: " if self.recorded else ""
        lines = [f"{mark}roof of memory {self.roof.gb_per_s:,.4g} GB/s"]
        lines += [
            f"roof of {kind} {rate * 1e3:,.4g} GFLOP/s, ridge at "
            f"{self.roof.ridge(kind):.3g} FLOP/byte"
            for kind, rate in self.roof.tflop_per_s.items()
        ]
        return Table(rows, title="\n".join(lines), left=(0, 4))


def roofline(measured: Measurements) -> Roofline:
    """Read a "roofline" experiment, one's own or a recorded one: `lk.measure("roofline")`.

    Raises ValueError for another experiment, LookupError where a roof was not measured.
    """
    if not isinstance(measured, Measurements) or measured.name != "roofline":
        raise ValueError(f"{measured!r} is not a roofline: pass what lk.measure('roofline') gave.")
    return Roofline(measured)


def roofs(measured: Measurements) -> Roof:
    """Return the measured limits: of memory the fastest pass, per format the fastest product.

    The fastest of all: what the device did once it can do, and a CPU's copy moves more than is
    counted (a cache fetches what it is about to overwrite), which a pass in place does not.
    """
    passes = [point.gb_per_s for point in measured.where(roof="bandwidth") if point.gb_per_s]
    if not passes:
        raise LookupError("roofline: no pass over memory was measured")
    rates: dict[str, float] = {}
    for point in measured.where("matmul"):
        kind, rate = point.case.get("format"), point.tflop_per_s
        if isinstance(kind, str) and rate:
            rates[kind] = max(rate, rates.get(kind, 0.0))
    if not rates:
        raise LookupError("roofline: no matrix product was measured")
    return Roof(max(passes), rates)


def place(point: Measurement, roof: Roof) -> Placed | None:
    """Put a measured operation under the roofs; None where something of it is not known."""
    kind = point.case.get("format")
    if kind not in roof.tflop_per_s or not (point.flops and point.bytes and point.tflop_per_s):
        return None
    intensity = point.flops / point.bytes
    case = {name: value for name, value in point.case.items() if name not in ("format", "roof")}
    return Placed(
        point.of, kind, intensity, point.tflop_per_s, roof.attainable(intensity, kind),
        roof.regime(intensity, kind), case | {"format": kind},
    )  # fmt: skip


# -- the figure: FLOP/s against FLOP a byte, both logarithmic --------------------------------------

MARKERS = {"add": "s", "layer norm": "D", "convolution": "^", "matmul": "o"}
CHARACTER_IN, LINE_IN = 0.062, 0.145  # of a label at 8 points
SAME_IN = 0.5  # two points of one name that are nearer than this share a label
GAP_IN = 0.09  # between a point and its label
PLACES = ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, 1), (0, -1), (1, -2), (-1, 2),
          (1, 2), (-1, -2), (0, 2), (0, -2), (1, -3), (-1, 3), (1, 3), (-1, -3))  # fmt: skip


@measuring.figure
def draw(measured: Measurements, before: Measurements | None = None) -> Any:
    """Draw the measured roofs and the operations under them; `before` in grey.

    A data sheet's peaks are dashed, and only of the cards whose data sheet is cited.
    """
    line, old = Roofline(measured), Roofline(before) if before is not None else None
    texts = ["under the slope: limited by memory; under the flat: by compute"]
    if line.past_cache is False:
        texts.append("the copy was NOT well past the last-level cache: the slope may be a cache's")
    kind = "fp32" if "fp32" in line.roof.tflop_per_s else next(iter(line.roof.tflop_per_s))
    ridge = primitives.number(line.roof.ridge(kind))
    title = f"below {ridge} FLOP/byte memory is the limit (in {kind}), above it the arithmetic"
    lines = header(measured, before, *texts, title=title)
    colours = dict(zip(line.roof.tflop_per_s, style.LINES, strict=False))
    looks = {f"memory: {primitives.number(line.roof.gb_per_s)} GB/s": {"color": "black"}}
    looks |= {
        f"{kind}: {primitives.flops_text(line.roof.tflop_per_s[kind])}, ridge at "
        f"{primitives.number(line.roof.ridge(kind))} FLOP/byte": {"color": colour}
        for kind, colour in colours.items()
    }
    looks |= {"before": {"color": style.BEFORE}} if old else {}
    drawn = [(line.roof, colours, {"linewidth": 1.6})]
    if old:
        grey = dict.fromkeys(old.roof.tflop_per_s, style.BEFORE)
        drawn.append((old.roof, grey, {"linewidth": 0.8}))
    if line.datasheet:
        lines.append((f"dashed: data sheet of {line.datasheet.name}, {line.datasheet.source}", {}))
        stated = {k: v for k, v in line.datasheet.tflop_per_s.items() if k in colours}
        dashed = {"linewidth": 1, "linestyle": (0, (4, 3))}
        drawn.append((Roof(line.datasheet.gb_per_s, stated), colours, dashed))
    rows = -(-len(looks) // style.legend_columns(list(looks)))
    figure, (axes,) = style.page(lines, [(0.14 + style.LEGEND_ROW_IN * rows, 4.0)], left_in=0.75)
    _frame(axes, [roof for roof, _, _ in drawn], line.points + (old.points if old else []))
    for roof, inks, look in drawn:
        _draw_roof(axes, roof, inks, look)
    for points, ink, size in ((old.points if old else [], style.BEFORE, 18), (line.points, "", 42)):
        for p in points:
            axes.scatter(p.intensity, p.tflop_per_s * 1e3, s=size, color=ink or colours[p.kind],
                         marker=MARKERS.get(p.name, "o"), edgecolors="white", linewidths=0.7,
                         zorder=4)  # fmt: skip
    _label_points(axes, line)
    primitives.legend(axes, looks)
    return figure


def _frame(axes: Any, roofs: list[Roof], points: list[Placed]) -> None:
    across = [p.intensity for p in points]
    across += [roof.ridge(kind) for roof in roofs for kind in roof.tflop_per_s]
    low, high = min(across) / 3, max(across) * 6
    floor = min([p.tflop_per_s * 1e3 for p in points] + [r.gb_per_s * low * 2 for r in roofs])
    top = max(rate * 1e3 for roof in roofs for rate in roof.tflop_per_s.values())
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor / 1.8, top * 2.2))
    axes.set_xlabel("arithmetic intensity: FLOP per byte that has to move")
    axes.set_ylabel("GFLOP/s (10⁹ FLOP a second)")
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_roof(axes: Any, roof: Roof, colours: dict[str, str], look: dict[str, Any]) -> None:
    """Draw the slope up to the last ridge, and a flat roof from each format's ridge on."""
    low, high = axes.get_xlim()
    kinds = list(roof.tflop_per_s)
    end = min(high, max((roof.ridge(kind) for kind in kinds), default=high))
    slope = style.BEFORE if style.BEFORE in colours.values() else "black"
    axes.plot([low, end], [roof.gb_per_s * low, roof.gb_per_s * end], color=slope, **look)
    for place, kind in enumerate(kinds):
        start = max(low, roof.ridge(kind))
        # two formats may have one roof: both are to be seen
        wider = 1.2 * (len(kinds) - 1 - place) if look["linewidth"] == 1.6 else 0
        axes.plot([start, high], [roof.tflop_per_s[kind] * 1e3] * 2, color=colours[kind],
                  **look | {"linewidth": look["linewidth"] + wider})  # fmt: skip


def _label_points(axes: Any, line: Roofline) -> None:
    """Name each point at the free place nearest to it; once where the same size is close by.

    No name is written across a roof: little boxes along it are taken. All in pixels.
    """
    dpi, area = axes.figure.dpi, axes.get_window_extent()
    to_pixels = axes.transData.transform
    spots = [to_pixels((p.intensity, p.tflop_per_s * 1e3)) for p in line.points]
    xs = np.geomspace(*axes.get_xlim(), 200)
    along = [
        to_pixels((x, line.roof.attainable(x, k) * 1e3)) for k in line.roof.tflop_per_s for x in xs
    ]
    taken = [(x - r, y - r, x + r, y + r) for r, many in ((5, spots), (2, along)) for x, y in many]
    labelled: dict[str, list] = {}
    gap, tall = GAP_IN * dpi, LINE_IN * dpi
    for point, (x, y) in sorted(zip(line.points, spots, strict=True), key=lambda pair: pair[1][0]):
        if any(np.hypot(x - a, y - b) < SAME_IN * dpi for a, b in labelled.get(point.text, [])):
            continue
        labelled.setdefault(point.text, []).append((x, y))
        wide = CHARACTER_IN * len(point.text) * dpi
        options = []
        for side, level in PLACES:
            left = x + gap if side > 0 else x - gap - wide if side < 0 else x - wide / 2
            middle = y + level * (tall + (gap if side == 0 else 0))
            box = left, middle - tall / 2, left + wide, middle + tall / 2
            inside = area.x0 <= box[0] and box[2] <= area.x1
            inside = inside and area.y0 <= box[1] and box[3] <= area.y1
            hit = any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3]
                      for b in taken)  # fmt: skip
            options.append((hit or not inside, box, abs(level) > 1))
        _, box, pointing = next((o for o in options if not o[0]), options[0])
        taken.append(box)
        middle = axes.transData.inverted().transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
        thread = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.6} if pointing else None
        style.literal(axes.annotate(
            point.text, (point.intensity, point.tflop_per_s * 1e3), tuple(middle),
            textcoords="data", ha="center", va="center", fontsize=8, zorder=5, arrowprops=thread,
        ))  # fmt: skip
