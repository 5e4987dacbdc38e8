"""The roofline: which limit an operation is under, and how far below it.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. Attainable FLOP/s = min(compute roof, bandwidth x intensity),
with the arithmetic intensity in FLOP a byte moved. Here both roofs are measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.analysis.datasheets import Card, card
from labkit.results.measurements import Measurement, Measurements

FAR_BELOW = 0.25  # share of the roof under which the roof is no explanation


@dataclass(frozen=True)
class Roof:
    """A device's limits: memory in GB/s (10^9 byte/s) and compute in TFLOP/s (10^12) per format."""

    gb_per_s: float
    tflop_per_s: dict[str, float]

    def ridge(self, kind: str) -> float:
        """The intensity, FLOP/byte, from which a format's compute roof is the limit."""
        return self.tflop_per_s[kind] * 1e3 / self.gb_per_s

    def attainable(self, intensity: float, kind: str) -> float:
        """The most TFLOP/s that the roofs allow at `intensity` FLOP/byte."""
        return min(self.tflop_per_s[kind], self.gb_per_s * intensity / 1e3)

    def regime(self, intensity: float, kind: str) -> str:
        """Which roof is the lower one at `intensity`: "memory" or "compute"."""
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


class Roofline:
    """A device's measured roofs, and operations under them."""

    def __init__(self, measured: Measurements):
        """Read the roofs and the operations of a "roofline" experiment.

        Raises LookupError where a roof is missing: a run that failed, or was stopped too early.
        """
        self.measured, self.machine = measured, measured.machine
        self.recorded = measured.recorded
        self.roof = roofs(measured)
        self.points = [
            placed for point in measured if (placed := place(point, self.roof)) is not None
        ]
        self.past_cache: bool | None = None  # whether the bandwidth is that of memory, if known
        for point in measured.where("arrays"):
            self.past_cache = point.values.get("past_cache")
        self.datasheet: Card | None = card(self.machine.name)

    def one(self, name: str, **case: Any) -> Placed:
        """Return the operation of this name and case; raises LookupError where there is no one."""
        found = [
            point for point in self.points
            if point.name == name and all(point.case.get(k) == v for k, v in case.items())
        ]  # fmt: skip
        if len(found) != 1:
            raise LookupError(f"roofline: {len(found)} operations {name!r} {case or ''}".strip())
        return found[0]

    def plot(self) -> Any:
        """Draw it as a matplotlib Figure."""
        return self.measured.plot()

    def rows(self) -> list[tuple[str, ...]]:
        """The operations as text: name, intensity, rate, share of the roof, regime."""
        return [
            (name_of(p), f"{p.intensity:.3g} FLOP/byte", f"{p.tflop_per_s * 1e3:,.4g} GFLOP/s",
             f"{p.of_roof:.0%} of the roof", p.verdict)
            for p in self.points
        ]  # fmt: skip

    def __repr__(self) -> str:
        mark = f"RECORDED on {self.machine.name}: " if self.recorded else ""
        lines = [f"{mark}roof of memory {self.roof.gb_per_s:,.4g} GB/s"]
        lines += [
            f"roof of {kind} {rate * 1e3:,.4g} GFLOP/s, ridge at "
            f"{self.roof.ridge(kind):.3g} FLOP/byte"
            for kind, rate in self.roof.tflop_per_s.items()
        ]
        lines += [f"  {a:28}{b:>18}{c:>20}{d:>20}  {e}" for a, b, c, d, e in self.rows()]
        return "\n".join(lines)


def roofline(measured: Measurements) -> Roofline:
    """Read a "roofline" experiment, one's own or a recorded one: `lk.measure("roofline")`.

    Raises ValueError for another experiment, LookupError where a roof was not measured.
    """
    if not isinstance(measured, Measurements) or measured.name != "roofline":
        raise ValueError(f"{measured!r} is no roofline: give what lk.measure('roofline') gave.")
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


def name_of(point: Placed) -> str:
    """What the operation is called: its name, size and format."""
    size = f" {point.case['n']}" if "n" in point.case else ""
    return f"{point.name}{size}, {point.kind}"
