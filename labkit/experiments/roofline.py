"""The roofline: this device's measured roofs, and real operations placed under them.

FLOPs and bytes are counted, every input once in and every output once out.
Attainable FLOP/s = min(compute roof, bandwidth x FLOP a byte): Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.analysis.datasheets import card
from labkit.experiments.device import ALL, SIDE, USUAL, side, time_product
from labkit.experiments.measure import flops, formats, machine, nn, page, primitives, style, torch
from labkit.results.measurements import Measurements
from labkit.results.result import Result, Table
from labkit.spec import experiment, knob
from labkit.wiring import Later

workbench = Later("labkit.bench.workbench")

LAYER = 1024  # numbers normalised together
CHANNELS, EDGE, KERNEL = 64, 56, 3  # of the convolution: as in a ResNet-18's first stage
IMAGES = (8, 16, 32, 64, 128, 256, 512)
SIZES_ON_CPU = (32, 128, 512)


@experiment(
    "this device's measured roofs, and real operations under them",
    mib=knob(None, "size of the arrays", kind="int", unit="MiB", low=1, high=1 << 17,
             auto="well past the last-level cache; on a GPU never less"),
    n=knob(None, "rows of the matrices of the compute roofs", **SIDE),
    formats=knob(None, "number formats", kind="str", choices=ALL, each=True,
                 auto=", ".join(USUAL)),
    sizes=knob(None, "rows of the smaller products", kind="int", low=1, high=1 << 16, each=True,
               auto="chosen for the device"),
    threads=knob(None, "threads of a CPU", kind="int", low=1, high=1024, auto="as many as a run's"),
)  # fmt: skip
def roofline(job: Any, bench: Any) -> None:
    """Measure the roofs (`roof` in the case), and operations that are more than their launch.

    The day's highest rates are kept: later runs here, on as many threads, have an MFU by them.
    """
    if job.threads:
        torch.set_num_threads(job.threads)
        bench.log.write("machine", **machine.describe(bench.device))
    memory_bound(job, bench)
    for name in bench.usable(job.formats or USUAL):
        bench.stage(f"matrix products in {name}")
        roof = job.n or side(bench, name, largest=True)
        time_product(bench, name, roof, of="matmul", format=name, roof="compute")
        sizes = job.sizes or SIZES_ON_CPU
        if not (job.sizes or bench.on_cpu):
            smallest = side(bench, name)
            sizes = [n for n in workbench.SIDES if n >= smallest]
        for size in sorted({*sizes} - {roof}):  # that is measured already
            time_product(bench, name, size, of="matmul", format=name)
    convolution(bench)
    flops.keep_roof(bench.device, bench.roofs)


def memory_bound(job: Any, bench: Any) -> None:
    """Time passes over FP32 arrays past the cache, into memory that is there already.

    A CPU's copy fetches its target too, which is not counted. Layer norm has 7 FLOPs a number: sum
    for the mean (1), subtract it (1), square and sum (2), scale (1), weight and bias (2).
    """
    n = bench.past_cache_elements(job.mib)
    if not bench.on_cpu:  # an L2 of 72 MB holds arrays of 32 MiB, and they are read in no time
        n = max(n, bench.past_cache_elements())
    bench.stage("the roof of memory")
    a = bench.random_array(n)
    b = torch.empty_like(a).fill_(1.0)
    roof = {"bytes": 8 * n, "launches": 1, "roof": "bandwidth"}
    bench.time(lambda: b.copy_(a), of="copy", **roof)
    bench.time(lambda: b.mul_(0.9999), of="scale in place", **roof)
    bench.stage("elementwise operations")
    fp32 = {"launches": 1, "format": "fp32"}
    bench.time(lambda: torch.add(a, b, out=b), of="add", flops=n, bytes=12 * n, **fp32)
    rows = n // LAYER
    x = a[: rows * LAYER].view(rows, LAYER)  # (rows, 1024)
    weight, bias = torch.rand(2, LAYER, device=bench.device)
    # A CPU's new result would be timed with its pages being cleared: it is done in blocks of 1 MiB
    # that end where they came from
    blocks = x.split(256 if bench.on_cpu else rows)

    def norm() -> None:
        for block in blocks:
            normed = nn.functional.layer_norm(block, (LAYER,), weight, bias)
            if bench.on_cpu:
                block.copy_(normed)

    bench.time(norm, of="layer norm", flops=7 * x.numel(), bytes=8 * x.numel(), **fp32)


def convolution(bench: Any) -> None:
    """Time one 3x3 convolution, 64 channels to 64, on float32 tensors: 2 FLOPs a multiply-add."""
    bench.stage("convolution")
    weight = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, device=bench.device)

    def work_of(images: int) -> Callable[[], Any]:
        x = torch.randn(images, CHANNELS, EDGE, EDGE, device=bench.device)  # (images, 64, 56, 56)
        return lambda: nn.functional.conv2d(x, weight, padding=KERNEL // 2)

    with torch.inference_mode():
        images = bench.fitting(work_of, IMAGES)
        numbers = images * CHANNELS * EDGE**2  # in, and as many out: the padding keeps the size
        bench.time(work_of(images), of="convolution", flops=2 * numbers * CHANNELS * KERNEL**2,
                   bytes=4 * (2 * numbers + weight.numel()), launches=1,
                   format=formats.fp32_runs_in("convolution", bench.device))  # fmt: skip


FAR_BELOW = 0.25  # share of the roof under which the roof is no explanation


@dataclass(frozen=True)
class Roof:
    """A device's limits: memory in GB/s (10^9 byte/s) and compute in TFLOP/s (10^12) per format."""

    gb_per_s: float
    tflop_per_s: dict[str, float]

    def ridge(self, kind: str) -> float:
        """Return the intensity, FLOP/byte, from which a format's compute roof is the limit."""
        return self.tflop_per_s[kind] * 1e3 / self.gb_per_s


@dataclass(frozen=True)
class Placed:
    """One operation under the roofs."""

    name: str
    kind: str  # the format, whose compute roof counts
    intensity: float  # FLOP/byte
    tflop_per_s: float
    of_roof: float  # what it reached of what the roofs allow; above 1 where caches spare memory
    regime: str
    verdict: str  # the regime in words; far below both roofs neither is what holds it back
    case: dict[str, Any]


class Roofline(Result):
    """A device's measured roofs, and operations under them, as `lk.measure("roofline")` found them.

    Of memory the fastest pass counts, per format the fastest product. Raises ValueError for another
    experiment's measurements, LookupError where a roof is missing: of a run that failed.
    """

    def __init__(self, measured: Measurements):
        if getattr(measured, "name", "") != "roofline":
            raise ValueError(f"{measured!r} is not a roofline: pass lk.measure('roofline')'s.")
        self.measured = measured
        passes = [point.gb_per_s for point in measured.where(roof="bandwidth") if point.gb_per_s]
        rates: dict[str, float] = {}
        known = [(str(p.case.get("format")), p) for p in measured if p.tflop_per_s]
        for kind, point in known:
            if point.of == "matmul":
                rates[kind] = max(point.tflop_per_s, rates.get(kind, 0.0))
        if not passes or not rates:
            missing = "pass over memory" if not passes else "matrix product"
            raise LookupError(f"roofline: no {missing} was measured")
        self.roof = Roof(max(passes), rates)
        self.points: list[Placed] = []
        for kind, point in known:
            if kind in rates and point.bytes:
                at, rate = point.flops / point.bytes, point.tflop_per_s
                of_roof = rate / min(rates[kind], self.roof.gb_per_s * at / 1e3)
                regime = "memory" if at < self.roof.ridge(kind) else "compute"
                far = "side, far below: overhead, not a roof" if of_roof < FAR_BELOW else "bound"
                said = regime, f"{regime} {far}", point.case
                self.points.append(Placed(point.of, kind, at, rate, of_roof, *said))

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
        points, machine = [vars(p) for p in self.points], self.measured.machine.to_dict()
        return {**vars(self.roof), "machine": machine, "points": points}

    def table(self) -> Table:
        """Return the operations: name, intensity, rate, share of the roof, regime."""
        rows = [
            (f"{p.name} {p.case.get('n', '')}".strip() + f", {p.kind}",
             f"{p.intensity:.3g} FLOP/byte", f"{p.tflop_per_s * 1e3:,.4g} GFLOP/s",
             f"{p.of_roof:.0%} of the roof", p.verdict)
            for p in self.points
        ]  # fmt: skip
        mark = f"{self.measured.mark}: " if self.measured.recorded else ""
        lines = [f"{mark}roof of memory {self.roof.gb_per_s:,.4g} GB/s"]
        for kind, rate in self.roof.tflop_per_s.items():
            ridge = f"ridge at {self.roof.ridge(kind):.3g} FLOP/byte"
            lines.append(f"roof of {kind} {rate * 1e3:,.4g} GFLOP/s, {ridge}")
        return Table(rows, title="\n".join(lines), left=(0, 4))


MARKERS = {"add": "s", "layer norm": "D", "convolution": "^", "matmul": "o"}


@roofline.figure
def draw(measured: Measurements) -> Any:
    """Draw the measured roofs and the operations under them; a cited card's promise is dashed."""
    line, number = Roofline(measured), primitives.number
    roof = line.roof
    colours = dict(zip(roof.tflop_per_s, style.LINES, strict=False))
    roofs, texts = [(roof, {"lw": 1.6})], ["under the slope: memory is the limit"]
    if sheet := card(measured.machine.name):
        stated = {kind: v for kind, v in sheet.tflop_per_s.items() if kind in colours}
        roofs.append((Roof(sheet.gb_per_s, stated), {"lw": 1, "ls": (0, (4, 3))}))
        texts.append(f"dashed: data sheet of {sheet.name}, {sheet.source}")
    looks = {f"memory: {number(roof.gb_per_s)} GB/s": {"color": "black"}}
    for kind, colour in colours.items():
        rate = primitives.flops_text(roof.tflop_per_s[kind])
        looks[f"{kind}: {rate}, ridge at {number(roof.ridge(kind))} FLOP/byte"] = {"color": colour}
    for name in dict.fromkeys(point.name for point in line.points):
        looks[name] = {"color": "black", "marker": MARKERS.get(name, "o"), "ls": ""}
    rows = -(-len(looks) // style.legend_columns(list(looks)))
    kind = "fp32" if "fp32" in colours else next(iter(colours))
    title = (f"below {number(roof.ridge(kind))} FLOP/byte memory is the limit (in {kind}), "
             "above it the arithmetic")  # fmt: skip
    figure, (axes,) = page(measured, [(0.14 + style.LEGEND_ROW_IN * rows, 4.0)], *texts,
                           title=title, left_in=0.75)  # fmt: skip
    across = [p.intensity for p in line.points] + [roof.ridge(kind) for kind in colours]
    low, high = min(across) / 3, max(across) * 6
    for each, look in roofs:  # the slope up to the last ridge, and a flat roof from each on
        end = min(high, max(map(each.ridge, each.tflop_per_s), default=high))
        axes.plot([low, end], [each.gb_per_s * low, each.gb_per_s * end], color="black", **look)
        for name, rate in each.tflop_per_s.items():
            across, height = [max(low, each.ridge(name)), high], [rate * 1e3] * 2
            axes.plot(across, height, color=colours[name], **look)
    for p in line.points:
        at = p.intensity, p.tflop_per_s * 1e3
        axes.scatter(*at, s=42, color=colours[p.kind], edgecolors="white", linewidths=0.7,
                     marker=MARKERS.get(p.name, "o"), zorder=4)  # fmt: skip
        if p.kind == kind and "n" in p.case:  # in one format: the others' are above or below
            axes.annotate(f"{p.case['n']}", at, (5, -9), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylabel="GFLOP/s (10⁹ FLOP a second)",
             xlabel="arithmetic intensity: FLOP per byte that has to move (numbers: rows of n x n)",
             )  # fmt: skip
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    primitives.legend(axes, looks)
    return figure


roofline = Roofline  # what lk.roofline is; the experiment itself stands in EXPERIMENTS
