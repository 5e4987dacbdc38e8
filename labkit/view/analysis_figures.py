"""The figures of `lk.trace`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas
from matplotlib.figure import Figure

from labkit.text import counted
from labkit.traces.breakdown import Breakdown, Change, TraceComparison, words_of
from labkit.traces.public import PublicTrace
from labkit.view.primitives import AROUND_IN, ROW_IN, Bar, Lane, draw_lanes, hbars
from labkit.view.rows_figure import plot
from labkit.view.style import (
    BLUE,
    BOLD,
    COMPUTE,
    COPY,
    OTHER,
    SKY,
    VERMILION,
    WAIT,
    YELLOW,
    drawable,
    our_style,
    page,
    whole_percent,
)

CLASSES = {  # of a trace: (name, colour), the kit's where a class is one of its parts
    "kernel": ("kernel", COMPUTE),
    "memcpy": ("copy", COPY),
    "memset": ("memset", YELLOW),
    "communication": ("communication", BLUE),
    "runtime": ("CUDA calls", VERMILION),
    "dataloader": ("DataLoader", WAIT),
    "cpu_exec": ("CPU operators", SKY),
    "other": ("other (Python)", OTHER),
}
COLOUR_OF_LANE = {  # rows of a picture of a trace, as the classes that they show
    "CPU operators": SKY,
    "DataLoader": WAIT,
    "CUDA calls": VERMILION,
    "kernels": COMPUTE,
    "collectives": BLUE,
    "copies": COPY,
}
LANE_IN = 0.26  # inches that a lane is high
LANES_AROUND_IN = 0.4
MOST_KERNELS = 6
NAME_LENGTH = 44  # characters of a kernel's name
SOURCE_LENGTH = 60


@our_style
def draw_trace(breakdown: Breakdown) -> Figure:
    """Draw the average step of a trace as bars; one without device activity has no idle gaps."""
    step_us = breakdown.step_us
    bars = []
    for key, (name, colour) in CLASSES.items():
        share = breakdown.shares[key]
        if share:
            text = f"{_ms(share * step_us)} ({whole_percent(share)})"
            bars.append(Bar(name, share * step_us, text, colour))
    panels = {"the average step by class: sums, not a timeline": bars}
    if breakdown.gpu_utilization is not None:
        gaps = {words_of(cause): us or 0.0 for cause, us in breakdown.idle.items()}
        title = f"device idle: {_ms(sum(gaps.values()))} a step"
        panels[title] = [Bar(name, gap, _ms(gap), "#777777") for name, gap in gaps.items()]
    if breakdown.top_kernels:
        on_cores = whole_percent(breakdown.tensor_core_share)
        could = whole_percent(breakdown.tensor_core_eligible_share)
        title = f"top kernels; on Tensor Cores: {on_cores} of kernel time, could be {could}"
        panels[title] = []
        for kernel in breakdown.top_kernels[:MOST_KERNELS]:
            took_us = kernel.total_us / breakdown.steps
            text = f"{_ms(took_us)}{' (Tensor Cores)' if kernel.tensor_core else ''}"
            panels[title].append(Bar(_short(kernel.name), took_us, text, COMPUTE))
    device = drawable(breakdown.device_name or breakdown.device_kind.upper(), SOURCE_LENGTH)
    steps = counted(breakdown.steps, "step")
    busy = f"{whole_percent(breakdown.utilization)} of a step computing"
    return _bars_page(f"{device}: {busy}; {steps} of {_ms(step_us)} on average", panels)


@our_style
def draw_timeline(
    source: str,
    lanes: Mapping[str, np.ndarray],
    start_ms: float | None = None,
    end_ms: float | None = None,
) -> Figure:
    """Draw when each lane of a trace was active; lines mark the steps.

    Args:
        source: What it is a trace of.
        lanes: (n, 2) starts and ends in ms, by what is active, or "rank 3: " and that; also of the
            "steps", which may be missing.
        start_ms: Where the picture begins: with the first step, else with the first activity.
        end_ms: Where it ends: with the second step, else with the last activity.
    """
    rows_of = {label: spans for label, spans in lanes.items() if label != "steps"}
    steps = lanes.get("steps")
    shown = np.concatenate([*rows_of.values()]) if steps is None else steps[:2]
    start = float(shown.min()) if start_ms is None else start_ms
    end = float(shown.max()) if end_ms is None else end_ms
    rows = []
    for label, spans in rows_of.items():
        kind = label.split(": ")[-1]
        active = np.diff(spans.clip(start, end)).any()
        if active or kind == "kernels":  # no kernel says something, no copy does not
            rows.append(Lane(label, [(COLOUR_OF_LANE[kind], spans)]))
    header = [(drawable(source, 200), BOLD)]
    figure, [axes] = page(header, [LANES_AROUND_IN + LANE_IN * len(rows)])
    draw_lanes(axes, rows[::-1], start, end)
    if steps is not None:
        place = axes.get_xaxis_transform()
        axes.vlines(steps[:, 0], 0, 1, color="black", linewidth=0.8, transform=place)
        axes.set_xlim(start, end)
    axes.set_xlabel("ms")
    return figure


@our_style
def draw_comparison(comparison: TraceComparison) -> Figure:
    """Draw the average step of two traces by class, and the kernels that changed most."""
    panels = {
        "the average step by class (grey line: before)": comparison.classes,
        "kernels that changed most": comparison.kernels,
    }
    bars = {}
    for title, changes in panels.items():
        rows = [each for each in changes if each.before_us or each.after_us]
        if rows:
            bars[title] = [_changed_bar(each) for each in rows]
    before = drawable(comparison.before.source, SOURCE_LENGTH)
    after = drawable(comparison.after.source, SOURCE_LENGTH)
    return _bars_page(f"{before} -> {after}: {comparison.headline}", bars)


def _changed_bar(change: Change) -> Bar:
    name, colour = CLASSES.get(change.name, (_short(change.name), COMPUTE))
    sign = "-" if change.change_us < 0 else "+"
    text = f"{_ms(change.after_us)} ({sign}{_ms(abs(change.change_us))})"
    return Bar(name, change.after_us, text, colour, before=change.before_us)


def draw_reference(known: PublicTrace) -> Figure:
    """Draw the reference numbers of a trace that could not be read: what each rank's time was."""
    rows = []
    for rank, found in known.numbers.items():
        busy = found["kernel_busy"] or 0.0
        exposed = found.get("exposed_comm") or 0.0
        spent = {"communication": exposed, "no kernel": 1 - busy, "kernel": busy - exposed}
        for part, share in spent.items():
            rows.append({"rank": rank, "part": part, "share of the traced time, %": 100 * share})
    title = f"{known.mark}: {known.hardware}"
    return plot(pandas.DataFrame(rows), "rank", "share of the traced time, %", "part", title=title)


def _bars_page(header: str, panels: Mapping[str, list[Bar]]) -> Figure:
    """Return a figure of some bars below each title."""
    heights = [AROUND_IN + ROW_IN * len(bars) for bars in panels.values()]
    figure, drawn = page([(header, BOLD)], heights)
    for axes, (title, bars) in zip(drawn, panels.items(), strict=True):
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
    return drawable(head.rsplit("::", 1)[-1] + angle + arguments, NAME_LENGTH)
