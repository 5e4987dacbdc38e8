"""The roofline: which limit an operation is under, and how far below it; its figure.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. Attainable FLOP/s = min(compute roof, bandwidth x intensity),
with the arithmetic intensity in FLOP a byte moved. Here both roofs are measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.analysis.datasheets import card
from labkit.experiments.measure import header, primitives, style
from labkit.experiments.roofline import roofline as measuring
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table

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


class Roofline(Result):
    """A device's measured roofs, and operations under them.

    Of memory the fastest pass counts, per format the fastest product: what the device did once it
    can do, and a CPU's copy moves more than is counted (a cache fetches what it is about to
    overwrite), which a pass in place does not.
    """

    def __init__(self, measured: Measurements):
        """Read the roofs and the operations of a "roofline" experiment.

        Raises LookupError where a roof is missing: a run that failed, or was stopped too early.
        """
        self.measured, self.machine = measured, measured.machine
        self.recorded = measured.recorded
        passes = [point.gb_per_s for point in measured.where(roof="bandwidth") if point.gb_per_s]
        rates: dict[str, float] = {}
        for point in measured.where("matmul"):
            kind, rate = point.case.get("format"), point.tflop_per_s
            if isinstance(kind, str) and rate:
                rates[kind] = max(rate, rates.get(kind, 0.0))
        if not passes or not rates:
            missing = "pass over memory" if not passes else "matrix product"
            raise LookupError(f"roofline: no {missing} was measured")
        self.roof = Roof(max(passes), rates)
        self.points: list[Placed] = []
        for point in measured:
            kind = point.case.get("format")
            if kind in rates and point.flops and point.bytes and point.tflop_per_s:
                at = point.flops / point.bytes
                case = {name: value for name, value in point.case.items() if name != "roof"}
                self.points.append(Placed(
                    point.of, kind, at, point.tflop_per_s, self.roof.attainable(at, kind),
                    self.roof.regime(at, kind), case,
                ))  # fmt: skip

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
            (f"{p.name} {p.case.get('n', '')}".strip() + f", {p.kind}",
             f"{p.intensity:.3g} FLOP/byte", f"{p.tflop_per_s * 1e3:,.4g} GFLOP/s",
             f"{p.of_roof:.0%} of the roof", p.verdict)
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


# -- the figure: FLOP/s against FLOP a byte, both logarithmic --------------------------------------

MARKERS = {"add": "s", "layer norm": "D", "convolution": "^", "matmul": "o"}


@measuring.figure
def draw(measured: Measurements, before: Measurements | None = None) -> Any:
    """Draw the measured roofs and the operations under them; `before` in grey.

    A data sheet's peaks are dashed, and only of the cards whose data sheet is cited.
    """
    line, old = Roofline(measured), Roofline(before) if before is not None else None
    roof, number = line.roof, primitives.number
    texts = ["under the slope: limited by memory; under the flat: by compute"]
    arrays = measured.where("arrays")
    if arrays and arrays[-1].values.get("past_cache") is False:
        texts.append("the copy was NOT well past the last-level cache: the slope may be a cache's")
    colours = dict(zip(roof.tflop_per_s, style.LINES, strict=False))
    drawn = [(roof, colours, {"linewidth": 1.6})]
    if old:
        drawn.append((old.roof, dict.fromkeys(old.roof.tflop_per_s, style.BEFORE), {"lw": 0.8}))
    if sheet := card(line.machine.name):
        stated = {kind: v for kind, v in sheet.tflop_per_s.items() if kind in colours}
        drawn.append((Roof(sheet.gb_per_s, stated), colours, {"lw": 1, "ls": (0, (4, 3))}))
    looks = {f"memory: {number(roof.gb_per_s)} GB/s": {"color": "black"}}
    for kind, colour in colours.items():
        ridge = f"ridge at {number(roof.ridge(kind))} FLOP/byte"
        name = f"{kind}: {primitives.flops_text(roof.tflop_per_s[kind])}, {ridge}"
        looks[name] = {"color": colour}
    for name in dict.fromkeys(point.name for point in line.points):
        looks[name] = {"color": "black", "marker": MARKERS.get(name, "o"), "ls": ""}
    rows = -(-len(looks) // style.legend_columns(list(looks)))
    kind = "fp32" if "fp32" in roof.tflop_per_s else next(iter(roof.tflop_per_s))
    ridge = number(roof.ridge(kind))
    title = f"below {ridge} FLOP/byte memory is the limit (in {kind}), above it the arithmetic"
    lines = header(measured, before, *texts, title=title)
    lines += [(f"dashed: data sheet of {sheet.name}, {sheet.source}", {})] if sheet else []
    figure, (axes,) = style.page(lines, [(0.14 + style.LEGEND_ROW_IN * rows, 4.0)], left_in=0.75)
    points = [(p, colours[p.kind], 42) for p in line.points]
    points += [(p, style.BEFORE, 18) for p in (old.points if old else [])]
    _frame(axes, [each for each, _, _ in drawn], [p for p, _, _ in points])
    for each, inks, look in drawn:
        _draw_roof(axes, each, inks, look)
    for p, ink, size in reversed(points):
        axes.scatter(p.intensity, p.tflop_per_s * 1e3, s=size, color=ink, edgecolors="white",
                     marker=MARKERS.get(p.name, "o"), linewidths=0.7, zorder=4)  # fmt: skip
    for p in line.points:  # the sizes of the products in one format: the others are above or below
        if p.kind == kind and "n" in p.case:
            at = p.intensity, p.tflop_per_s * 1e3
            axes.annotate(f"{p.case['n']}", at, (5, -9), textcoords="offset points", fontsize=8)
    primitives.legend(axes, looks)
    return figure


def _frame(axes: Any, roofs: list[Roof], points: list[Placed]) -> None:
    across = [p.intensity for p in points]
    across += [roof.ridge(kind) for roof in roofs for kind in roof.tflop_per_s]
    low, high = min(across) / 3, max(across) * 6
    floor = min([p.tflop_per_s * 1e3 for p in points] + [r.gb_per_s * low * 2 for r in roofs])
    top = max(rate * 1e3 for roof in roofs for rate in roof.tflop_per_s.values())
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor / 1.8, top * 2.2))
    axes.set_xlabel("arithmetic intensity: FLOP per byte that has to move (numbers: rows of n x n)")
    axes.set_ylabel("GFLOP/s (10⁹ FLOP a second)")
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_roof(axes: Any, roof: Roof, colours: dict[str, str], look: dict[str, Any]) -> None:
    """Draw the slope up to the last ridge, and a flat roof from each format's ridge on."""
    low, high = axes.get_xlim()
    ridges = {kind: roof.ridge(kind) for kind in roof.tflop_per_s}
    end = min(high, max(ridges.values(), default=high))
    slope = style.BEFORE if style.BEFORE in colours.values() else "black"
    axes.plot([low, end], [roof.gb_per_s * low, roof.gb_per_s * end], color=slope, **look)
    for kind, ridge in ridges.items():
        rate = roof.tflop_per_s[kind] * 1e3
        axes.plot([max(low, ridge), high], [rate, rate], color=colours[kind], **look)
