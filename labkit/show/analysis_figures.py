"""The figures of `lk.trace`, `lk.instruments`, `lk.knee` and `lk.losses`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.analysis.instruments import Instruments, driver_samples, samples
from labkit.analysis.knee import Knee
from labkit.analysis.losses import Losses, name_of
from labkit.analysis.trace import Breakdown
from labkit.results.run import Run
from labkit.show.primitives import Bar, Series, hbars, lines, rows_in
from labkit.show.run_header import BOLD, run_header, several_header
from labkit.show.style import (
    BEFORE,
    COMPUTE,
    COPY,
    INSTRUMENT,
    LINES,
    OTHER,
    WAIT,
    drawable,
    literal,
    ms,
    our_style,
    page,
    percent,
)  # fmt: skip

MANY = 100  # readings of the telemetry, from which on their dots would make one band
DOTS = {"marker": ".", "markersize": 5, "linestyle": "none", "color": "#0072B2", "zorder": 3}
LINE = {"marker": ".", "markersize": 3, "linewidth": 1.0, "color": INSTRUMENT, "zorder": 3}
SMOOTH = 5  # steps: the losses of single batches differ more than those of formats do
DASHES = ("-", "--", ":", "-.")

# One curve: (label, seconds (n,), shares 0 to 1 (n,) with NaN where a sample is missing, style)
Curve = tuple[str, np.ndarray, np.ndarray, dict[str, Any]]


def curves(run: Run) -> list[Curve]:
    """Return the utilization curves that the run's telemetry has; none where it has none."""
    if run.machine.kind == "cpu":
        found = [("all CPU cores (psutil)", *samples(run, "cpu"), LINE)]
    else:
        smi = LINE | {"drawstyle": "steps-post"}
        found = [
            ("NVML's samples", *driver_samples(run), DOTS),
            ("nvidia-smi", *samples(run, "gpu_now"), smi),
        ]
    thin = {"markersize": 1.5, "alpha": 0.6} if len(run.telemetry) > MANY else {}
    return [(*curve, style | thin) for *curve, style in found if np.isfinite(curve[2]).any()]


@our_style
def draw_instruments(instruments: Instruments) -> Figure:
    """Draw a row per instrument, its readings as a line over the device's teeth."""
    run = instruments.run
    true, *others = [reading for reading in instruments if len(reading.shares)]
    figure, panels = page(run_header(run), [(0.34, 0.62)] * (1 + len(others)))
    end = run.busy[-1, 1]
    for axes, reading in zip(panels, [true, *others], strict=True):
        axes.fill_between(
            true.times_s, true.shares, step="post", color=COMPUTE, lw=0,
            alpha=0.9 if reading is true else 0.25,
        )  # fmt: skip
        off = ""
        if reading is not true:
            axes.step(
                [*reading.times_s, end], [*reading.shares, reading.shares[-1]], where="post",
                color="black", lw=1.2, marker="." if len(reading.shares) < 40 else None,
            )  # fmt: skip
            off = "" if reading.distance_pp is None else f": off by {reading.distance_pp:.0f} pp"
        axes.set_title(f"{reading.name}{off}  ({reading.source})", loc="left", pad=3)
        axes.set(xlim=(0, end), ylim=(0, 1.05), yticks=[0, 1], yticklabels=["0%", "100%"])
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("seconds since the first batch was asked for")
    return figure


@our_style
def draw_knee(knee: Knee) -> Figure:
    """Draw compute time of a step over samples/s, both against the batch, all logarithmic."""
    text = f"step = {ms(knee.fixed_ms)} ms + {knee.sample_ms:.3g} ms x batch; {knee.line}"
    header = several_header("compute time of a step against the batch", [text], knee.runs)
    figure, (upper, lower) = page(header, [(0.24, 1.9), (0.2, 1.6)])
    batch = np.geomspace(min(knee.sizes), max(knee.sizes), 200)
    fitted, sizes, times = knee.predicted_ms(batch), np.array(knee.sizes), np.array(knee.step_ms)
    mark = Line2D([], [], color=LINES[1], linestyle="--", label=f"knee: {knee.batch_size}")
    found = knee.batch_size is not None
    for axes, measured, line, ylabel in (
        (upper, times, fitted, "compute of a step, ms"),
        (lower, sizes / times * 1e3, batch / fitted * 1e3, "samples/s of compute"),
    ):
        named = axes is upper
        drawn = [
            Series("measured (median)" if named else "", sizes, measured),
            Series("fixed part + part per sample" if named else "", batch, line, BEFORE, marker=""),
        ]
        legend = [mark] if found and named else []
        lines(
            axes, drawn, "" if named else "batch_size", ylabel, log="xy",
            xticks={size: str(size) for size in knee.sizes}, legend=legend,
        )  # fmt: skip
        if found:
            axes.axvline(knee.n_half, color=LINES[1], linewidth=1.2, linestyle="--")
    upper.tick_params(labelbottom=False)
    return figure


@our_style
def draw_losses(losses: Losses) -> Figure:
    """Draw the loss of each run, smoothed over a few steps, then samples/s and peak memory."""
    runs = losses.runs
    title = "the same run, the same batches, in " + ", ".join(map(name_of, runs))
    word = "all within" if losses.survived else "NOT all within"
    text = f"mean losses: {word} {losses.tolerance:.0%} of {name_of(runs[0])}'s"
    tall = rows_in(len(runs))
    figure, (upper, speed, memory) = page(
        several_header(title, [text], runs), [(0.36, 1.7), (0.66, tall), (0.6, tall)]
    )
    smooth = []
    for i, run in enumerate(runs):
        curve = losses.curve(run)
        width = min(SMOOTH, len(curve))
        mean = np.convolve(curve, np.ones(width) / width, mode="valid")
        steps = np.arange(len(mean)) + width // 2
        smooth.append(Series(name_of(run), steps, mean, LINES[i], DASHES[i % len(DASHES)], ""))
    lines(upper, smooth, "step", f"loss, mean of {SMOOTH} steps")
    for axes, label, form, values in (
        (speed, "samples/s", ",.0f", [run.throughput for run in runs]),
        (memory, "peak memory, GiB", ".2f", [run.peak_memory_gib for run in runs]),
    ):
        known = [f"{value:{form}}" if value else "unknown" for value in values]
        bars = zip(map(name_of, runs), values, known, LINES, strict=False)
        hbars(axes, [Bar(*bar) for bar in bars], label)
    return figure


# -- a profiler trace ------------------------------------------------------------------------------

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
def draw_trace(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    classes = [
        Bar(name, took, f"{_ms(took)} ({percent(breakdown.shares[key])})", colour)
        for key, (name, colour) in CLASSES.items()
        if (took := breakdown.shares[key] * breakdown.step_us / 1000)
    ]
    panels = [("the average step by class: sums, not a timeline", classes)]
    if breakdown.gpu_utilization is not None:
        gaps = {name: breakdown.idle[cause] / 1000 for cause, name in CAUSES.items()}
        idle, share = sum(gaps.values()), sum(gaps.values()) * 1000 / breakdown.step_us
        bars = [Bar(name, gap, _ms(gap), "#777777") for name, gap in gaps.items()]
        panels.append((f"device idle: {_ms(idle)} a step ({percent(share)})", bars))
    if breakdown.top_kernels:
        cores = (breakdown.tensor_core_share, breakdown.tensor_core_eligible_share)
        on, could = (percent(share) for share in cores)
        title = f"top kernels; on Tensor Cores: {on} of kernel time, could be {could}"
        panels.append((title, _kernels(breakdown)))
    steps = f"{breakdown.steps} steps" if breakdown.steps > 1 else "1 step"
    device = drawable(breakdown.device_name or breakdown.device_kind.upper(), 40)
    header = (
        f"{device}: {percent(breakdown.utilization)} of a step computing; {steps} of "
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
        took = kernel.total_us / 1000 / breakdown.steps
        colour, mark = (TENSOR_CORE, " (Tensor Cores)") if kernel.tensor_core else (COMPUTE, "")
        bars.append(Bar(_short(kernel.name), took, _ms(took) + mark, colour))
    return bars


def _ms(value: float) -> str:
    """Write a time given in ms, in µs where that reads better."""
    return f"{value:,.1f} ms" if value >= 0.95 or not value else f"{value * 1000:.3g} µs"


def _short(name: str) -> str:
    """Cut a demangled C++ name to what tells kernels apart: no namespaces, no parameter list."""
    name = name.removeprefix("void ").split("(")[0] or name
    head, angle, arguments = name.partition("<")
    head = head.rsplit("::", 1)[-1]
    arguments = arguments.replace("at::native::", "").replace("at::detail::", "")
    return drawable(head + angle + arguments, NAME_LENGTH)
