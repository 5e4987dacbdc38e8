"""The figures of `lk.trace` and `run.instruments()`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from labkit.diagnosis.instruments import Instruments, Reading, driver_samples, samples
from labkit.diagnosis.public_traces import PublicTrace
from labkit.diagnosis.trace_breakdown import Breakdown, Change, RankTraces, TraceComparison
from labkit.results.run import Run
from labkit.view import style
from labkit.view.primitives import Bar, hbars, rows_in, stack
from labkit.view.run_header import BOLD, run_header
from labkit.view.style import drawable, our_style, page, percent

MANY = 100  # readings of the telemetry, from which on their dots would make one band
DOTS = {"marker": ".", "markersize": 5, "linestyle": "none", "color": "#0072B2", "zorder": 3}
LINE = {"marker": ".", "markersize": 3, "linewidth": 1.0, "color": style.INSTRUMENT, "zorder": 3}

# One curve: (label, seconds (n,), shares 0 to 1 (n,) with NaN where a sample is missing, style)
Curve = tuple[str, np.ndarray, np.ndarray, dict[str, Any]]


def curves(run: Run) -> list[Curve]:
    """Return the utilization curves that the run's telemetry has; none where it has none."""
    if run.machine.kind == "cpu":
        found = [("all CPU cores (psutil)", samples(run, "cpu"), LINE)]
    else:
        steps = LINE | {"drawstyle": "steps-post"}
        found = [
            ("NVML's samples", driver_samples(run), DOTS),
            ("nvidia-smi", samples(run, "gpu_now"), steps),
        ]
    thin = {"markersize": 1.5, "alpha": 0.6} if len(run.telemetry) > MANY else {}
    return [
        (label, seconds, shares, look | thin)
        for label, (seconds, shares), look in found
        if np.isfinite(shares).any()
    ]


@our_style
def draw_instruments(instruments: Instruments) -> Figure:
    """Draw a row per instrument, its readings as a line over the device's teeth."""
    run = instruments.run
    end = run.length_s
    rows: dict[tuple, list[Reading]] = {}  # those with the same readings in one
    for reading in instruments:
        if len(reading.shares) and reading.times_s[0] < end:
            rows.setdefault((*reading.times_s, *reading.shares), []).append(reading)
    true, *others = instruments
    wrong = [each.distance_pp for each in others if each.distance_pp is not None]
    least, most = min(wrong, default=0), max(wrong, default=0)
    apart = f"; what instruments show is off by {least:.0f} to {most:.0f} pp" if wrong else ""
    header = [(text + apart if font is BOLD else text, font) for text, font in run_header(run)]
    header += [
        (f"{each.name}: {each.shares[0]:.0%}, read when the run was over", {})
        for each in instruments if len(each.shares) and each.times_s[0] >= end
    ]  # fmt: skip
    figure, panels = page(header, [(0.34, 0.62)] * len(rows))
    for axes, (reading, *same) in zip(panels, rows.values(), strict=True):
        fill, off = {"step": "post", "color": style.COMPUTE, "lw": 0}, ""
        axes.fill_between(true.times_s, true.shares, alpha=0.9 if reading is true else 0.25, **fill)
        if reading is not true:
            times, shares = [*reading.times_s, end], [*reading.shares, reading.shares[-1]]
            dots = "." if len(shares) < 40 else None
            axes.step(times, shares, where="post", color="black", lw=1.2, marker=dots)
            off = "" if reading.distance_pp is None else f": off by {reading.distance_pp:.0f} pp"
        also = [f"{len(same)} others"] if len(same) > 1 else [each.name for each in same]
        names = " = ".join([reading.name, *also])
        axes.set_title(f"{names}{off}  ({reading.source})", loc="left", pad=3)
        axes.set(xlim=(0, end), ylim=(0, 1.05), yticks=[0, 1], yticklabels=["0%", "100%"])
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("seconds since the first batch was asked for")
    return figure


CLASSES = {  # of a trace: (name, colour), the kit's where a class is one of its parts
    "kernel": ("kernel", style.COMPUTE),
    "memcpy": ("copy", style.COPY),
    "memset": ("memset", "#F0E442"),
    "communication": ("communication", "#0072B2"),
    "runtime": ("CUDA calls", "#D55E00"),
    "dataloader": ("DataLoader", style.WAIT),
    "cpu_exec": ("CPU operators", "#56B4E9"),
    "other": ("other (Python)", style.OTHER),
}
CAUSES = {
    "host_wait_us": "host wait (ran dry)",
    "host_us": "host outside operators",
    "kernel_wait_us": "kernel wait (short gaps)",
    "other_us": "other",
}
LANES = {  # rows of a picture of a trace: the classes that they show
    "CPU operators": "cpu_exec",
    "DataLoader": "dataloader",
    "CUDA calls": "runtime",
    "kernels": "kernel",
    "collectives": "communication",
    "copies": "memcpy",
}
LANE_IN = 0.26  # inches that a lane is high
KERNELS, NAME_LENGTH = 6, 46  # listed; characters of a kernel's name


@our_style
def draw_trace(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    step_us = breakdown.step_us
    steps = breakdown.steps
    bars = []
    for key, (name, colour) in CLASSES.items():
        if share := breakdown.shares[key]:
            text = f"{_ms(share * step_us)} ({percent(share)})"
            bars.append(Bar(name, share * step_us, text, colour))
    panels = [("the average step by class: sums, not a timeline", bars)]
    if breakdown.gpu_utilization is not None:
        gaps = {name: breakdown.idle.get(cause) or 0.0 for cause, name in CAUSES.items()}
        idle = sum(gaps.values())
        bars = [Bar(name, gap, _ms(gap), "#777777") for name, gap in gaps.items()]
        panels.append((f"device idle: {_ms(idle)} a step ({percent(idle / step_us)})", bars))
    bars = []
    for kernel in breakdown.top_kernels[:KERNELS]:
        took = kernel.total_us / steps
        dark = ("#004D40", " (Tensor Cores)") if kernel.tensor_core else (style.COMPUTE, "")
        bars.append(Bar(_short(kernel.name), took, _ms(took) + dark[1], dark[0]))
    if bars:
        cores = (breakdown.tensor_core_share, breakdown.tensor_core_eligible_share)
        on, could = map(percent, cores)
        title = f"top kernels; on Tensor Cores: {on} of kernel time, could be {could}"
        panels.append((title, bars))
    device = drawable(breakdown.device_name or breakdown.device_kind.upper(), 40)
    header = (
        f"{device}: {percent(breakdown.utilization)} of a step computing; {steps} "
        f"step{'s' * (steps > 1)} of {_ms(step_us)} on average"
    )
    return _bars(header, panels)


@our_style
def draw_timeline(
    source: str,
    lanes: dict[str, np.ndarray],
    start_ms: float | None = None,
    end_ms: float | None = None,
) -> Figure:
    """Draw when each lane of a trace was active; lines mark the steps.

    Args:
        source: What it is a trace of.
        lanes: (n, 2) starts and ends in ms of each lane, and of the `steps`.
        start_ms: Where the picture begins: with the first step, else with the first activity.
        end_ms: Where it ends: with the second step, else with the last activity.
    """
    rows = [name for name in lanes if name != "steps"]
    marks = lanes.get("steps", np.concatenate([lanes[name] for name in rows]))
    shown = marks[:2] if "steps" in lanes else marks
    start = float(shown.min()) if start_ms is None else start_ms
    end = float(shown.max()) if end_ms is None else end_ms
    header = [(drawable(source, 200), BOLD)]
    figure, (axes,) = page(header, [(0.1, LANE_IN * len(rows))], left_in=1.6)
    for row, name in enumerate(rows):
        spans = lanes[name]
        seen = spans[(spans[:, 1] > start) & (spans[:, 0] < end)]
        colour = CLASSES[LANES[name.split(": ")[-1]]][1]
        stretches = [(begin, stop - begin) for begin, stop in seen]
        axes.broken_barh(stretches, (row - 0.36, 0.72), color=colour, linewidth=0)
    if "steps" in lanes:
        axes.vlines(marks[:, 0], -0.5, len(rows) - 0.5, color="black", linewidth=0.8)
    axes.set(xlim=(start, end), ylim=(len(rows) - 0.5, -0.5))
    axes.set(yticks=range(len(rows)), yticklabels=rows, xlabel="ms")
    return figure


@our_style
def draw_comparison(comparison: TraceComparison) -> Figure:
    """Draw the average step of two traces by class, and the kernels and operators that changed."""
    titles = {
        "classes": "the average step by class (grey line: before)",
        "kernels": "kernels that changed most",
        "operators": "operators that changed most: host time",
    }
    panels = []
    for what, changes in comparison.changes().items():
        bars = [_changed_bar(change) for change in changes if change.before_us or change.after_us]
        if bars:
            panels.append((titles[what], bars))
    names = (drawable(each.source, 40) for each in (comparison.before, comparison.after))
    return _bars(f"{' -> '.join(names)}: {comparison.headline}", panels)


def _changed_bar(change: Change) -> Bar:
    name, colour = CLASSES.get(change.name, (_short(change.name), style.COMPUTE))
    sign = "-" if change.change_us < 0 else "+"
    text = f"{_ms(change.after_us)} ({sign}{_ms(abs(change.change_us))})"
    return Bar(name, change.after_us, text, colour, before=change.before_us)


@our_style
def draw_ranks(ranks: RankTraces) -> Figure:
    """Draw where the average step of every rank went: who waits in collectives, and for whom."""
    parts = {
        "compute_busy": CLASSES["kernel"],
        "exposed_comm": CLASSES["communication"],
        "idle": ("device idle", style.OTHER),
    }
    rows = []
    late = ranks.straggler
    for each in ranks:
        spent = {part: each.busy.get(part, 0.0) * each.step_us / 1000 for part in parts}
        said = ", the straggler" if each.rank == late else ""
        rows.append((f"rank {each.rank}", spent, f"{_ms(each.step_us)}{said}"))
    found = f"the others wait for rank {late}" if late is not None else "no straggler"
    header = f"{drawable(ranks.source, 40)}: {len(ranks)} ranks; {found}"
    figure, (axes,) = page([(header, BOLD)], [(0.36, rows_in(len(rows)))])
    stack(axes, rows, parts, "ms of an average step")
    return figure


@our_style
def draw_reference(known: PublicTrace) -> Figure:
    """Draw the reference numbers of a trace that could not be read: what each rank's time was."""
    parts = {
        "kernel": CLASSES["kernel"],
        "exposed": CLASSES["communication"],
        "none": ("no kernel", style.OTHER),
    }
    rows = []
    for rank, found in known.numbers.items():
        busy = found["kernel_busy"] or 0.0
        exposed = found.get("exposed_comm") or 0.0
        spent = {"kernel": busy - exposed, "exposed": exposed, "none": 1 - busy}
        rows.append((rank, spent, f"of {found['window_ms']:,.1f} ms"))
    header = [(f"{known.mark}: {known.hardware}", BOLD), (f"{known.bottleneck}: {known.why}", {})]
    figure, (axes,) = page(header, [(0.36, rows_in(len(rows)))])
    stack(axes, rows, parts, "share of the traced time")
    return figure


def _bars(header: str, panels: list[tuple[str, list[Bar]]]) -> Figure:
    sizes = [(0.36, rows_in(len(bars))) for _, bars in panels]
    figure, drawn = page([(header, BOLD)], sizes, left_in=3.1, bottom_in=0.15)
    for axes, (title, bars) in zip(drawn, panels, strict=True):
        hbars(axes, bars)
        axes.set_title(title, loc="left")
    return figure


def _ms(us: float) -> str:
    """Write a time given in µs, in ms where that reads better."""
    return f"{us / 1000:,.1f} ms" if us >= 950 or not us else f"{us:.3g} µs"


def _short(name: str) -> str:
    """Cut a demangled C++ name to what tells kernels apart: no namespaces, no parameter list."""
    name = name.removeprefix("void ").split("(")[0] or name
    head, angle, arguments = name.partition("<")
    arguments = arguments.replace("at::native::", "").replace("at::detail::", "")
    return drawable(head.rsplit("::", 1)[-1] + angle + arguments, NAME_LENGTH)
