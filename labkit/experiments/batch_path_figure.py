"""The path of a batch as a drawing: places as boxes, crossings as arrows with their rates."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.experiments.measured_header import measured_header
from labkit.results.measurements import Measurements
from labkit.show.boxes import arrow, box, canvas, number, say
from labkit.show.style import our_style, page

LEFT_IN, WIDE, TALL = 0.12, 7.9, 1.75  # inches
DISK, RAM, PINNED, DEVICE, CORE = "#EEEEEE", "#CFE3F1", "#B9D3E8", "#F5E6C4", "#CDE9DF"
GAP_IN = 0.88  # between boxes: room for a rate
UNKNOWN = "not\nmeasured"

# Per kind of device: the places, and the leg that leads to each place from the one before
CPU_PATH = [
    ("disk", DISK, None),
    ("RAM\n(the file)", RAM, "disk to RAM"),
    ("RAM\n(the batch)", RAM, "RAM to RAM"),
    ("core", CORE, "RAM to core"),
]
GPU_PATH = [
    ("disk", DISK, None),
    ("RAM,\npageable", RAM, "disk to RAM"),
    ("RAM,\npinned", PINNED, "RAM to pinned RAM"),
    ("VRAM", DEVICE, "pinned RAM to device"),
    ("SMs", CORE, "device memory"),
]


@our_style
def draw(measured: Measurements) -> Figure:
    """Draw the way of a batch, each arrow with its measured GB/s, the narrowest one in bold."""
    kind = measured.machine.kind
    path = GPU_PATH if kind == "gpu" else CPU_PATH
    header = measured_header(measured, None, "10⁹ byte/s that arrive, each crossing alone")
    figure, (axes,) = page(header, [(0.05, TALL)], left_in=LEFT_IN, bottom_in=0.05)
    canvas(axes, WIDE, TALL)
    rates = {leg: rate_of(measured, leg) for _, _, leg in path if leg}
    slowest = min((rate for rate in rates.values() if rate), default=None)
    gaps = len(path) - 1
    gap = GAP_IN if kind == "gpu" else 1.3
    wide = (WIDE - gaps * gap - 0.1) / len(path)
    for place, (name, colour, leg) in enumerate(path):
        x = 0.05 + place * (wide + gap)
        box(axes, x, 0.55, wide, 0.8, colour)
        say(axes, x + wide / 2, 0.95, name + _under(measured, name))
        if leg:
            _crossing(axes, x - gap, gap, rates[leg], rates[leg] == slowest)
    _notes(axes, measured, kind, wide, gap)
    return figure


def rate_of(measured: Measurements, leg: str) -> float | None:
    """The rate of a leg, GB/s; None where it was not measured."""
    found = measured.where(leg)
    return found[0].gb_per_s if found else None


def _crossing(axes: Axes, x: float, gap: float, rate: float | None, slowest: bool) -> None:
    arrow(axes, (x + 0.04, 0.95), (x + gap - 0.04, 0.95))
    text = UNKNOWN if rate is None else f"{number(rate)} GB/s"
    say(axes, x + gap / 2, 1.12 if rate else 1.2, text,
        fontweight="bold" if slowest else "normal", fontsize=8)  # fmt: skip


def _under(measured: Measurements, name: str) -> str:
    """What a place does with the batch: its arithmetic, where it is one that computes."""
    found = measured.where("arithmetic")
    if name not in ("core", "SMs") or not found or not found[0].tflop_per_s:
        return ""
    rate = found[0].tflop_per_s
    return f"\n{number(rate)}\nTFLOP/s" if rate >= 1 else f"\n{number(rate * 1e3)}\nGFLOP/s"


def _notes(axes: Axes, measured: Measurements, kind: str, wide: float, gap: float) -> None:
    """What else was measured beside the path, under the boxes it concerns."""
    beside = {1: ("page cache to RAM", "a file read before:\n{} GB/s")}
    if kind == "gpu":
        beside[3] = ("RAM to device", "from pageable RAM:\n{} GB/s")
    else:
        beside[3] = ("L2 cache to core", "from the L2 cache:\n{} GB/s")
    for place, (leg, text) in beside.items():
        rate = rate_of(measured, leg)
        if rate is not None:
            x = 0.05 + place * (wide + gap) + wide / 2
            say(axes, x, 0.28, text.format(number(rate)), fontsize=8, color="#555555")
