"""The figure of one run: its teeth, its utilization over the whole run, and its mean step.

The teeth are true intervals, never samples, and only those of a short window are drawn, so that a
run of a million steps is as quick to draw as one of a hundred. A watched run has the costliest
lines of its code as well.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

from labkit.results.readings import driver_readings, readings_of
from labkit.results.run import Run
from labkit.results.step_classes import AHEAD
from labkit.results.text import counted
from labkit.view.display import FIGURE_PX
from labkit.view.lines_figure import draw_lines, line_bars, lines_panels
from labkit.view.primitives import Lane, draw_lanes, patches, rows_in, stack
from labkit.view.run_header import device_of, run_header
from labkit.view.style import (
    BEFORE,
    BLUE,
    COMPUTE,
    COPY,
    GREY,
    INSTRUMENT,
    LOUD,
    PARTS,
    WAIT,
    legend_above,
    ms,
    our_style,
    page,
    room_in,
)

WINDOW_STEPS = 10  # steps in the window
MOST_IN_WINDOW = 24  # at most: two rounds of the workers, where they are many
STEPS_A_BIN = 3  # of the utilization: finer bins would show single teeth, aliased
MAX_BINS = 120
SPACES_IN = (0.30, 0.72, 0.80)  # above the three axes
MANY = 100  # readings of the telemetry: the dots of more would merge into a band
LINE = {"marker": ".", "markersize": 3, "linewidth": 1.0, "color": INSTRUMENT}
INSTRUMENTS = {  # how their curves are drawn
    "all CPU cores (psutil)": LINE,
    "NVML's samples": {"marker": ".", "markersize": 5, "linestyle": "none", "color": BLUE},
    "nvidia-smi": LINE | {"drawstyle": "steps-post"},
}


@our_style
def draw_run(run: Run, before: Run | None) -> Figure:
    """Draw `run`; the utilization and the mean step of `before` beside it, where given.

    A run too short to have numbers gets a figure that says so, and why.
    """
    header = run_header(run, before)
    if run.utilization is None:
        why = "Nothing to draw: utilization needs two steps or more, and the warm-up is left out."
        if run.launches_only:
            why = "Nothing to draw: when the device was busy is not known, only what it was given."
        return page([*header, (why, GREY if run.error else LOUD)], [])[0]
    if before is not None and before.utilization is None:
        before = None  # the header says so
    mean_in = rows_in(2 if before else 1)
    free_in = room_in(FIGURE_PX[before is not None], header) - mean_in - sum(SPACES_IN)
    tall_in = (max(0.9, 0.45 * free_in), max(1.1, 0.55 * free_in), mean_in)
    panels = list(zip(SPACES_IN, tall_in, strict=True))
    bars = line_bars(run.lines) if run.watched else []
    if bars:
        panels += lines_panels(run.lines, bars)
    figure, (teeth, whole, step, *rest) = page(header, panels)
    marked_s = _draw_teeth(teeth, run)
    _draw_whole(whole, run, before, marked_s)
    draw_mean_steps(step, run, before)
    if bars:
        draw_lines(rest, run.lines, bars)
    return figure


def teeth_window(run: Run) -> tuple[int, int]:
    """Return a short window in the middle of a run: its first step, and the one after its last."""
    first = max(run.warmup, 1)
    wanted = min(max(WINDOW_STEPS, 2 * (run.pipeline.num_workers or 0)), MOST_IN_WINDOW)
    count = min(wanted, run.steps - first)
    start = first + (run.steps - first - count) // 2
    return start, start + count


def teeth_lanes(run: Run, near: np.ndarray) -> list[Lane]:
    """Return what the device did, and what the loop waited for, of `near`: (n, 6), s."""
    lanes = [Lane("loop waits for data", [(WAIT, near[:, 0:2])], 0.6)]
    if not run.watched:
        lanes.append(Lane("copy", [(COPY, near[:, 2:4])], 0.6))
    return [*lanes, Lane(f"{device_of(run)} busy", [(COMPUTE, near[:, 4:6])], 2.0)]


def _draw_teeth(axes: Axes, run: Run) -> tuple[float, float]:
    """Draw lanes of true intervals; return from when to when, s."""
    first, end_step = teeth_window(run)
    start = end_of(run, first)
    end = max(end_of(run, end_step), start + 1e-6)
    near = run.stretch(max(0, first - AHEAD), end_step + AHEAD)  # the host may be ahead
    draw_lanes(axes, teeth_lanes(run, near), start, end)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_xlabel("s since the first batch was asked for: the marked stretch below, enlarged")
    count = counted(end_step - first, "step")
    width = ms((end - start) * 1e3)
    axes.set_title(f"The teeth: true intervals of {count} ({width} ms)", loc="left")
    return start, end


def _draw_whole(axes: Axes, run: Run, before: Run | None, marked_s: tuple[float, float]) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    bin_ms = 1e3 * run.length_s / bins_of(run)
    width = f"{ms(bin_ms)} ms" if bin_ms < 1000 else f"{ms(bin_ms / 1e3)} s"
    what = "gaps between kernels included" if run.utilization_is_upper_bound else "true intervals"
    look = {"facecolor": COMPUTE, "alpha": 0.35, "linewidth": 0}
    axes.stairs(*_binned(run), fill=True, label=f"busy share of every {width} ({what})", **look)
    axes.stairs(*_binned(run), color=COMPUTE, linewidth=1.3, zorder=4)
    if run.warmup:
        warm = {"color": "#EEEEEE", "linewidth": 0, "zorder": 0}
        axes.axvspan(0, end_of(run, run.warmup), label="warm-up", **warm)
    thin = {"markersize": 1.5, "alpha": 0.6} if len(run.telemetry) > MANY else {}
    for name, (seconds, shares) in curves(run).items():
        axes.plot(seconds, shares, label=name, zorder=3, **INSTRUMENTS[name] | thin)
    if before is not None:
        look = {"color": BEFORE, "linewidth": 1.0, "alpha": 0.75, "zorder": 3}
        axes.stairs(*_binned(before), label="before", **look)
    axes.axvspan(*marked_s, facecolor="none", edgecolor="black", linewidth=0.9, zorder=2)
    _mark_mean(axes, run)
    length_s = max(run.length_s, before.length_s if before else 0)
    axes.set(xlim=(0, length_s), ylim=(0, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel(f"{device_of(run)} busy")
    axes.set_xlabel("s since the first batch was asked for: the whole run")
    legend_above(axes, axes.get_legend_handles_labels()[0])


def curves(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the utilization that each instrument showed: when (n,), s, and the share (n,), 0 to 1.

    A missing sample is NaN: a gap. An instrument without any is left out.
    """
    if run.machine.kind == "cpu":
        found = {"all CPU cores (psutil)": readings_of(run, "cpu")}
    else:
        found = {"NVML's samples": driver_readings(run), "nvidia-smi": readings_of(run, "gpu_now")}
    return {name: known for name, known in found.items() if np.isfinite(known[1]).any()}


def _mark_mean(axes: Axes, run: Run) -> None:
    """Draw the mean utilization as a line over the measured steps, its number at the end."""
    mean = run.utilization or 0.0
    start = end_of(run, max(run.warmup, 1))
    axes.plot([start, run.length_s], [mean, mean], "--", color="black", linewidth=1, zorder=5)
    axes.axhline(mean, color="black", linestyle=":", linewidth=0.5)  # leads on to its number
    at_most = "\n≤" if run.utilization_is_upper_bound else ""  # one line would be too long
    axes.annotate(
        f"mean{at_most} {mean:.0%}",
        (1, mean),
        (5, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontweight="bold",
        annotation_clip=False,
    )


def end_of(run: Run, steps: int) -> float:
    """Return when the first `steps` steps were over, s."""
    return float(run.stretch(steps - 1, steps)[0, 5])


def bins_of(run: Run) -> int:
    """Return in how many equal bins a run's utilization is drawn."""
    return int(np.clip(run.steps // STEPS_A_BIN, 4, MAX_BINS))


def _binned(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's utilization in equal bins, and their edges, s."""
    bins = bins_of(run)
    return run.timeline(bins)[1], np.linspace(0, run.length_s, bins + 1)


def step_parts(run: Run, steps: int) -> dict[str, float]:
    """Return the parts of so many mean steps in ms: every moment in one of `PARTS`."""
    return {part: steps * (getattr(run, f"{part}_ms") or 0.0) for part in PARTS}


def draw_mean_steps(axes: Axes, run: Run, before: Run | None) -> None:
    """Draw the mean step; every number is in the legend, the wide ones inside too."""
    runs = {"this run": run} if before is None else {"this run": run, "before": before}
    micro = {name: each.pipeline.accumulation_steps or 1 for name, each in runs.items()}
    what = "step"
    if len(set(micro.values())) > 1:  # a micro-batch beside a whole batch compares nothing
        what = "update ({} micro-batches, {} before)".format(*micro.values())
    else:
        micro = dict.fromkeys(micro, 1)
    rows = {name: step_parts(each, micro[name]) for name, each in runs.items()}
    now, *then = rows.values()
    total_ms = sum(now.values())
    named = {}
    for part, (name, colour) in PARTS.items():
        if run.watched and part == "copy":
            continue  # somewhere inside the loop's body
        numbers = f"{ms(now[part])} ms ({now[part] / total_ms:.0%})"
        for earlier in then:
            numbers = f"{ms(earlier[part])} → {ms(now[part])} ms"
        name = "loop body" if run.watched and part == "compute" else name
        named[part] = (f"{name} {numbers}", colour)
    stack(axes, rows, named, ms, " ms")
    legend_above(axes, patches(named.values()))
    axes.set_xlabel(f"ms of the mean {what}: what the device did, or waited for (warm-up left out)")
