"""A figure of a profiler trace: the step by class, the device's idle gaps, the top kernels."""

from __future__ import annotations

from matplotlib.figure import Figure

from labkit.analysis.trace import Breakdown
from labkit.show.primitives import Bar, hbars, rows_in
from labkit.show.run_header import BOLD
from labkit.show.style import COMPUTE, COPY, OTHER, WAIT, drawable, literal, our_style, page

CLASSES = {  # (name, colour): the kit's where a class is one of its parts
    "kernel": ("kernel", COMPUTE),
    "memcpy": ("copy", COPY),
    "memset": ("memset", "#F0E442"),
    "communication": ("communication", "#0072B2"),
    "runtime": ("CUDA calls", "#D55E00"),
    "dataloader": ("DataLoader", WAIT),
    "cpu_exec": ("CPU operators", "#56B4E9"),
    "other": ("other (Python)", OTHER),
}
TENSOR_CORE = "#004D40"
CAUSES = {
    "host_wait_us": "host wait (ran dry)",
    "kernel_wait_us": "kernel wait (short gaps)",
    "other_us": "other",
}
KERNELS = 6  # listed
NAME_LENGTH = 46  # characters of a kernel's name
LEFT_IN = 3.1  # room for it


@our_style
def draw(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    classes = [
        Bar(name, ms, f"{_ms(ms)} ({_percent(breakdown.shares[key])})", colour)
        for key, (name, colour) in CLASSES.items()
        if (ms := breakdown.shares[key] * breakdown.step_us / 1000)
    ]
    panels = [("the average step by class: sums, not a timeline", classes)]
    if breakdown.gpu_utilization is not None:
        gaps = {name: breakdown.idle[cause] / 1000 for cause, name in CAUSES.items()}
        idle, share = sum(gaps.values()), sum(gaps.values()) * 1000 / breakdown.step_us
        bars = [Bar(name, ms, _ms(ms), "#777777") for name, ms in gaps.items()]
        panels.append((f"device idle: {_ms(idle)} a step ({_percent(share)})", bars))
    if breakdown.top_kernels:
        cores = (breakdown.tensor_core_share, breakdown.tensor_core_eligible_share)
        on, could = (_percent(share) for share in cores)
        title = f"top kernels; on Tensor Cores: {on} of kernel time, could be {could}"
        panels.append((title, _kernels(breakdown)))
    steps = f"{breakdown.steps} steps" if breakdown.steps > 1 else "1 step"
    device = drawable(breakdown.device_name or breakdown.device_kind.upper(), 40)
    header = (
        f"{device}: {_percent(breakdown.utilization)} of a step computing; {steps} of "
        f"{_ms(breakdown.step_us / 1000)} on average"
    )
    sizes = [(0.36, rows_in(len(bars))) for _, bars in panels]
    figure, drawn = page([(header, BOLD)], sizes, left_in=LEFT_IN, bottom_in=0.15)
    for axes, (title, bars) in zip(drawn, panels, strict=True):
        hbars(axes, bars)
        literal(axes.set_title(title, loc="left"))
    return figure


def _kernels(breakdown: Breakdown) -> list[Bar]:
    """Return bars of the kernels that took most time, those on Tensor Cores marked."""
    bars = []
    for kernel in breakdown.top_kernels[:KERNELS]:
        ms = kernel.total_us / 1000 / breakdown.steps
        colour, mark = (TENSOR_CORE, " (Tensor Cores)") if kernel.tensor_core else (COMPUTE, "")
        bars.append(Bar(_short(kernel.name), ms, _ms(ms) + mark, colour))
    return bars


def _ms(value: float) -> str:
    """Write a time given in ms, in µs where that reads better."""
    return f"{value:,.1f} ms" if value >= 0.95 or not value else f"{value * 1000:.3g} µs"


def _percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{share:.0%}" if share >= 0.0095 or not share else f"{share:.1%}"


def _short(name: str) -> str:
    """Cut a demangled C++ name to what tells kernels apart: no namespaces, no parameter list."""
    name = name.removeprefix("void ").split("(")[0] or name
    head, angle, arguments = name.partition("<")
    head = head.rsplit("::", 1)[-1]
    arguments = arguments.replace("at::native::", "").replace("at::detail::", "")
    return drawable(head + angle + arguments, NAME_LENGTH)
