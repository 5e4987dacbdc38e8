"""A figure of a profiler trace: the step by class, the device's idle gaps, the top kernels."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.analysis.trace import Breakdown
from labkit.show.style import (
    COMPUTE,
    COPY,
    DPI,
    OTHER,
    WAIT,
    WIDTH_IN,
    Picture,
    drawable,
    literal,
    our_style,
)

COLOURS = {  # the kit's where a class is one of its parts, else what is left of the same palette
    "kernel": COMPUTE,
    "memcpy": COPY,
    "memset": "#F0E442",
    "communication": "#0072B2",
    "runtime": "#D55E00",
    "dataloader": WAIT,
    "cpu_exec": "#56B4E9",
    "other": OTHER,
}
TENSOR_CORE = "#004D40"
NAMES = {
    "kernel": "kernel",
    "memcpy": "copy",
    "memset": "memset",
    "communication": "communication",
    "runtime": "CUDA calls",
    "dataloader": "DataLoader",
    "cpu_exec": "CPU operators",
    "other": "other (Python)",
}
DARK = {"kernel", "memcpy", "communication", "runtime"}  # white text on these
CAUSES = {
    "host_wait_us": "host wait\n(ran dry)",
    "kernel_wait_us": "kernel wait\n(short gaps)",
    "other_us": "other",
}
KERNELS = 6  # listed
NAME_LENGTH = 46  # characters of a kernel's name


@our_style
def draw(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace; times in ms, nothing touches pyplot's global state.

    A trace without device activity gets the bar of the step alone.
    """
    on_gpu = breakdown.gpu_utilization is not None
    figure = Picture(
        figsize=(WIDTH_IN, 5.2 if on_gpu else 2.2), dpi=DPI, facecolor="white", layout="constrained"
    )
    rows = figure.subfigures(2 if on_gpu else 1, 1, squeeze=False, height_ratios=_heights(on_gpu))
    _draw_step(rows[0, 0].subplots(), breakdown)
    if on_gpu:
        left, right = rows[1, 0].subplots(1, 2)
        _draw_idle(left, breakdown)
        _draw_kernels(right, breakdown)
    return figure


def _heights(on_gpu: bool) -> list[float]:
    return [2.3, 3.3] if on_gpu else [1]


def _draw_step(axes: Axes, breakdown: Breakdown) -> None:
    """One stacked bar: the classes in order of priority, the wide ones labelled inside."""
    left = 0.0
    handles = []
    for name, share in breakdown.shares.items():
        ms = share * breakdown.step_us / 1000
        colour = COLOURS[name]
        axes.barh(0, ms, left=left, color=colour, edgecolor="white", linewidth=1)
        if share >= 0.14:
            axes.text(
                left + ms / 2, 0, f"{NAMES[name]}\n{_ms(ms)}", ha="center", va="center",
                color="white" if name in DARK else "black",
            )  # fmt: skip
        if ms:
            label = f"{NAMES[name]} {_ms(ms)} ({_percent(share)})"
            handles.append(Patch(color=colour, label=label))
        left += ms
    steps = f"{breakdown.steps} steps" if breakdown.steps > 1 else "1 step"
    device = drawable(breakdown.device_name or breakdown.device_kind.upper(), 40)
    _title(
        axes,
        f"Average of {steps} on {device}: {_ms(breakdown.step_us / 1000)}, "
        f"{_percent(breakdown.utilization)} of it computing",
    )
    axes.set_xlim(0, breakdown.step_us / 1000)
    axes.set_yticks([])
    axes.set_xlabel("ms of the step, by class (sums, not a timeline)")
    axes.spines["left"].set_visible(False)
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


def _draw_idle(axes: Axes, breakdown: Breakdown) -> None:
    """Bars of the device's idle time by cause."""
    values = [breakdown.idle[cause] / 1000 for cause in CAUSES]
    bars = axes.barh(list(CAUSES.values()), values, color="#777777")
    axes.bar_label(bars, [_ms(value) for value in values], padding=4)
    share = sum(values) * 1000 / breakdown.step_us
    _title(axes, f"Device idle: {_ms(sum(values))} a step ({_percent(share)})")
    _finish(axes, max(values))
    axes.set_xlabel("ms per step")


def _draw_kernels(axes: Axes, breakdown: Breakdown) -> None:
    """Bars of the kernels that took most time, those on Tensor Cores marked."""
    top = breakdown.top_kernels[:KERNELS]
    values = [kernel.total_us / 1000 / breakdown.steps for kernel in top]
    colours = [TENSOR_CORE if kernel.tensor_core else COLOURS["kernel"] for kernel in top]
    marks = [" (Tensor Cores)" if kernel.tensor_core else "" for kernel in top]
    labels = [_ms(value) + mark for value, mark in zip(values, marks, strict=True)]
    bars = axes.barh(range(len(top)), values, color=colours)
    axes.bar_label(bars, labels, padding=4)
    axes.set_yticks(range(len(top)), [_short(kernel.name) for kernel in top], fontsize=7.5)
    for label in axes.get_yticklabels():
        literal(label)
    _title(axes, "Top kernels")
    cores = (breakdown.tensor_core_share, breakdown.tensor_core_eligible_share)
    on, could = (_percent(share) for share in cores)
    _finish(axes, max(values, default=0), room=1.6 if any(marks) else 1.3)
    # Flush right, so that it runs under the names, not out of the figure.
    axes.set_xlabel(
        f"ms per step (on Tensor Cores: {on} of kernel time, could be {could})", loc="right"
    )


def _finish(axes: Axes, largest: float, room: float = 1.3) -> None:
    axes.invert_yaxis()
    axes.set_xlim(0, largest * room or 1)  # the labels at the bars' ends need it
    axes.tick_params(axis="y", length=0)


def _title(axes: Axes, text: str) -> None:
    literal(axes.set_title(text, loc="left", fontsize=10))


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
