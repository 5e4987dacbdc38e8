"""The figure of a run, and of the one before it: teeth, the whole run, and the mean step.

The teeth are true intervals, never samples, and only those of a short window are drawn, so that a
run of a million steps is as quick to draw as one of a hundred.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from labkit.results.readings import driver_readings, readings_of
from labkit.results.run_data import RunData
from labkit.view import FIGURE_PX
from labkit.view.primitives import Lane, draw_lanes, patches, stack, write_beside
from labkit.view.run_header import device_of, run_header
from labkit.view.style import (
    BEFORE,
    BLUE,
    COMPUTE,
    COPY,
    GREY,
    LOUD,
    PARTS,
    SKY,
    WAIT,
    Picture,
    legend_above,
    ms,
    our_style,
    page,
)

WINDOW_STEPS = 10  # of the slower run, in the stretch that is enlarged; of two runs half as many
NEAR_STEPS = 1000  # before and after the middle, of which the stretch is taken
STEPS_A_BIN = 3  # of the utilization: finer bins would show single teeth, aliased
BINS = (4, 120)
TEETH, WHOLE, STEP = 1.1, 1.4, 0.25  # heights of the axes, relative to each other
SINCE = "s since the first batch was asked for"
INSTRUMENTS = {"all CPU cores (psutil)": SKY, "NVML's samples": BLUE, "nvidia-smi": SKY}


@our_style
def draw_run(run: RunData, before: RunData | None) -> Picture:
    """Draw `run`, and `before` beside it where given.

    A run too short to have numbers gets a figure that says so, and why.
    """
    header = run_header(run, before)
    if run.utilization is None:
        why = "Nothing to draw: utilization needs two steps or more, without the warm-up"
        why += ", and to know when the device was busy." if run.launches_only else "."
        return page([*header, (why, GREY if run.error else LOUD)], [])[0]
    runs = {"this run": run}
    if before is not None and before.utilization is not None:  # else the header says so
        runs = {"before": before, **runs}
    heights = [*[TEETH] * len(runs), WHOLE, STEP * len(runs)]
    figure, axes = page(header, heights, FIGURE_PX[before is not None])
    length_s = window_s(runs.values())
    marked_s = 0.0, 0.0
    for place, (name, each) in zip(axes, runs.items(), strict=False):
        what = "The teeth" if len(runs) == 1 else f"{name}: {each.in_short}"
        marked_s = _draw_teeth(place, each, length_s, what)
    axes[len(runs) - 1].set_xlabel(f"{SINCE}: the marked stretch below, enlarged")
    _draw_whole(axes[len(runs)], runs, marked_s)
    draw_mean_steps(axes[len(runs) + 1], runs)
    return figure


def window_s(runs: Collection[RunData]) -> float:
    """Return how much of each run is drawn enlarged, s: a few steps, of the slower one."""
    measured_s = [run.length_s - end_of(run, max(run.warmup, 1)) for run in runs]
    longest_ms = max(run.step_ms or 0.0 for run in runs)
    return max(min(WINDOW_STEPS / len(runs) * longest_ms / 1e3, *measured_s), 1e-6)


def _draw_teeth(axes: Axes, run: RunData, length_s: float, what: str) -> tuple[float, float]:
    """Draw lanes of true intervals in the middle of a run; return from when to when, s."""
    first = max(run.warmup, 1)
    middle = (first + run.steps) // 2
    near = run.stretch(max(0, middle - NEAR_STEPS), min(run.steps, middle + NEAR_STEPS))
    latest = run.length_s - length_s
    start = np.clip(end_of(run, middle) - length_s / 2, end_of(run, first), latest)
    lanes = [Lane("loop waits for data", [(WAIT, near[:, 0:2])], 0.6)]
    if not run.watched:
        lanes.append(Lane("copy", [(COPY, near[:, 2:4])], 0.6))
    lanes.append(Lane(f"{device_of(run)} busy", [(COMPUTE, near[:, 4:6])], 2.0))
    draw_lanes(axes, lanes, start, start + length_s)
    axes.set_title(f"{what} (true intervals of {ms(1e3 * length_s)} ms)", loc="left")
    return start, start + length_s


def _draw_whole(axes: Axes, runs: Mapping[str, RunData], marked_s: tuple[float, float]) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    run = runs["this run"]
    shares, edges = _binned(run)
    what = "gaps between kernels included" if run.utilization_is_upper_bound else "true intervals"
    label = f"busy share of every {ms(1e3 * edges[1])} ms ({what})"
    look = {"facecolor": (COMPUTE, 0.35), "edgecolor": COMPUTE, "linewidth": 1.3}
    axes.stairs(shares, edges, fill=True, label=label, **look)
    if run.warmup:
        look = {"facecolor": "none", "edgecolor": BEFORE, "hatch": "////", "linewidth": 0}
        axes.axvspan(0, end_of(run, run.warmup), label="warm-up, left out", **look)
    for name, (seconds, samples) in curves(run).items():
        axes.plot(seconds, samples, ".-", markersize=2.5, lw=0.8, c=INSTRUMENTS[name], label=name)
    if "before" in runs:
        axes.stairs(*_binned(runs["before"]), color=BEFORE, label="before")
    axes.axvspan(*marked_s, facecolor="none", edgecolor="black", linewidth=0.9)
    mean = run.utilization or 0.0
    axes.axhline(mean, color="black", linestyle="--", linewidth=1)
    at_most = "\n≤" if run.utilization_is_upper_bound else ""  # one line would be too long
    beside = axes.get_yaxis_transform()
    axes.text(1.01, mean, f"mean{at_most} {mean:.0%}", transform=beside, va="center", weight="bold")
    axes.set(xlim=(0, max(each.length_s for each in runs.values())), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(ylabel=f"{device_of(run)} busy", xlabel=f"{SINCE}: the whole run")
    legend_above(axes)


def curves(run: RunData) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the utilization that each instrument showed: when (n,), s, and the share (n,), 0 to 1.

    A missing sample is NaN: a gap. An instrument without any is left out.
    """
    if run.machine.kind == "cpu":
        found = {"all CPU cores (psutil)": readings_of(run, "cpu")}
    else:
        found = {"NVML's samples": driver_readings(run), "nvidia-smi": readings_of(run, "gpu_now")}
    return {name: known for name, known in found.items() if np.isfinite(known[1]).any()}


def end_of(run: RunData, steps: int) -> float:
    """Return when the first `steps` steps were over, s."""
    return float(run.stretch(steps - 1, steps)[0, 5])


def _binned(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's utilization in equal bins, and their edges, s."""
    bins = int(np.clip(run.steps // STEPS_A_BIN, *BINS))
    return run.timeline(bins)[1], np.linspace(0, run.length_s, bins + 1)


def draw_mean_steps(axes: Axes, runs: Mapping[str, RunData]) -> None:
    """Draw the mean step of each run; every number of the last one is in the legend.

    Where batches are accumulated it is that of an update: a micro-batch beside a whole batch
    compares nothing.
    """
    micro = {name: run.pipeline.accumulation_steps or 1 for name, run in runs.items()}
    rows = {}
    for name, run in runs.items():
        rows[name] = {part: micro[name] * (getattr(run, f"{part}_ms") or 0.0) for part in PARTS}
    named = {part: (name, colour) for part, (name, colour) in PARTS.items()}
    if any(run.watched for run in runs.values()):
        del named["copy"]  # somewhere inside the loop's body
        named["compute"] = ("loop body", COMPUTE)
    stack(axes, rows, {part: colour for part, (_, colour) in named.items()})
    for row, spent in enumerate(rows.values()):
        total_ms = sum(spent.values())
        write_beside(axes, total_ms, row, f"{ms(total_ms)} ms")
    handles = []
    for part, (name, colour) in named.items():
        numbers = " → ".join(ms(spent[part]) for spent in rows.values())
        handles.append((f"{name} {numbers} ms", colour))
    legend_above(axes, patches(handles))
    what = "update" if max(micro.values()) > 1 else "step"
    axes.set_xlabel(f"ms of the mean {what}: what the device did, or waited for (warm-up left out)")
