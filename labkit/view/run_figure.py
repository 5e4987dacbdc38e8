"""The figure of a run, and of the one before it: teeth, the whole run, and the mean step.

The teeth are true intervals, never samples, and only those of a short window are drawn, so that a
run of a million steps is as quick to draw as one of a hundred. A watched run has the costliest
lines of its code as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

from labkit.diagnosis.hot_lines import Lines, lines_of
from labkit.results.readings import driver_readings, readings_of
from labkit.results.run_data import RunData
from labkit.view.page_files import FIGURE_PX
from labkit.view.primitives import Bar, Lane, draw_lanes, hbars, patches, stack, write_beside
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
    legend_above,
    ms,
    our_style,
    page,
)

WINDOW_STEPS = (10, 24)  # steps in the window, at least and at most: two rounds of the workers
SLOW_STEPS = 6  # of the slower of two runs, whose windows are of one length
NEAR_STEPS = 1000  # before and after the middle, of which the window is taken
STEPS_A_BIN = 3  # of the utilization: finer bins would show single teeth, aliased
MAX_BINS = 120
TEETH, WHOLE, STEP = 1.1, 1.4, 0.25  # heights of the axes, relative to each other
LINE_PX = 27  # of a line of code
AROUND_PX = 30
MOST_LINES = 6  # of the loop, and half as many of the workers
LEAST_SHARE = 0.02  # of the time, of a line that is drawn
PLACE_LENGTH = 20  # characters of a line's place
LINE_LENGTH = 64
COLOURS = {"waiting": WAIT, "worker": WAIT, "between": BEFORE}  # of lines, by their phase
SINCE = "s since the first batch was asked for"
INSTRUMENTS = {"all CPU cores (psutil)": SKY, "NVML's samples": BLUE, "nvidia-smi": SKY}


@our_style
def draw_run(run: RunData, before: RunData | None) -> Figure:
    """Draw `run`, and `before` beside it where given.

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
    runs = {"this run": run} if before is None else {"before": before, "this run": run}
    tall = [*[TEETH] * len(runs), WHOLE, STEP * len(runs)]
    height_px = FIGURE_PX[before is not None]
    bars = line_bars(lines_of(run)) if run.watched else []
    if bars:
        bars_px = AROUND_PX + LINE_PX * len(bars)
        tall.append(sum(tall) * bars_px / height_px)
        height_px += bars_px
    figure, axes = page(header, tall, height_px)
    length_s = window_s(runs.values())
    marked_s = 0.0, 0.0
    for place, (name, each) in zip(axes, runs.items(), strict=False):
        what = "The teeth" if before is None else f"{name}: {each.in_short}"
        marked_s = _draw_teeth(place, each, length_s, what)
    axes[len(runs) - 1].set_xlabel(f"{SINCE}: the marked stretch below, enlarged")
    _draw_whole(axes[len(runs)], run, before, marked_s)
    draw_mean_steps(axes[len(runs) + 1], runs)
    if bars:
        hbars(axes[-1], bars)
        title = "share of the time, by line of your code (of workers: of their work)"
        axes[-1].set_title(title, loc="left")
    return figure


def window_s(runs: Collection[RunData]) -> float:
    """Return how much of each run is drawn enlarged, s: a few steps, of the slower one."""
    steps = SLOW_STEPS
    if len(runs) == 1:
        [run] = runs
        steps = np.clip(2 * (run.pipeline.num_workers or 0), *WINDOW_STEPS)
    measured_s = [run.length_s - end_of(run, max(run.warmup, 1)) for run in runs]
    longest_ms = max(run.step_ms or 0.0 for run in runs)
    return max(min(steps * longest_ms / 1e3, *measured_s), 1e-6)


def _draw_teeth(axes: Axes, run: RunData, length_s: float, what: str) -> tuple[float, float]:
    """Draw lanes of true intervals in the middle of a run; return from when to when, s."""
    first = max(run.warmup, 1)
    middle = (first + run.steps) // 2
    near = run.stretch(max(0, middle - NEAR_STEPS), min(run.steps, middle + NEAR_STEPS))
    earliest = end_of(run, first)
    start = np.clip(end_of(run, middle) - length_s / 2, earliest, run.length_s - length_s)
    lanes = [Lane("loop waits for data", [(WAIT, near[:, 0:2])], 0.6)]
    if not run.watched:
        lanes.append(Lane("copy", [(COPY, near[:, 2:4])], 0.6))
    lanes.append(Lane(f"{device_of(run)} busy", [(COMPUTE, near[:, 4:6])], 2.0))
    draw_lanes(axes, lanes, start, start + length_s)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_title(f"{what} (true intervals of {ms(1e3 * length_s)} ms)", loc="left")
    return start, start + length_s


def _draw_whole(
    axes: Axes, run: RunData, before: RunData | None, marked_s: tuple[float, float]
) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    bin_s = run.length_s / bins_of(run)
    width = f"{ms(1e3 * bin_s)} ms" if bin_s < 1 else f"{ms(bin_s)} s"
    what = "gaps between kernels included" if run.utilization_is_upper_bound else "true intervals"
    look = {"facecolor": COMPUTE, "alpha": 0.35, "linewidth": 0}
    axes.stairs(*_binned(run), fill=True, label=f"busy share of every {width} ({what})", **look)
    axes.stairs(*_binned(run), color=COMPUTE, linewidth=1.3, zorder=4)
    if run.warmup:
        warm = {"color": "#EEEEEE", "linewidth": 0, "zorder": 0}
        axes.axvspan(0, end_of(run, run.warmup), label="warm-up", **warm)
    for name, (seconds, shares) in curves(run).items():
        axes.plot(seconds, shares, ".-", markersize=2.5, lw=0.8, c=INSTRUMENTS[name], label=name)
    if before is not None:
        look = {"color": BEFORE, "linewidth": 1.0, "alpha": 0.75, "zorder": 3}
        axes.stairs(*_binned(before), label="before", **look)
    axes.axvspan(*marked_s, facecolor="none", edgecolor="black", linewidth=0.9, zorder=2)
    mean = run.utilization or 0.0
    axes.axhline(mean, color="black", linestyle="--", linewidth=1, zorder=5)
    at_most = "\n≤" if run.utilization_is_upper_bound else ""  # one line would be too long
    beside = axes.get_yaxis_transform()
    text = f"mean{at_most} {mean:.0%}"
    axes.text(1.01, mean, text, transform=beside, va="center", weight="bold")
    length_s = max(run.length_s, before.length_s if before else 0)
    axes.set(xlim=(0, length_s), ylim=(0, 1.03), yticks=[0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel(f"{device_of(run)} busy")
    axes.set_xlabel(f"{SINCE}: the whole run")
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


def bins_of(run: RunData) -> int:
    """Return in how many equal bins a run's utilization is drawn."""
    return int(np.clip(run.steps // STEPS_A_BIN, 4, MAX_BINS))


def _binned(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's utilization in equal bins, and their edges, s."""
    bins = bins_of(run)
    return run.timeline(bins)[1], np.linspace(0, run.length_s, bins + 1)


def step_parts(run: RunData, steps: int) -> dict[str, float]:
    """Return the parts of so many mean steps in ms: every moment in one of `PARTS`."""
    return {part: steps * (getattr(run, f"{part}_ms") or 0.0) for part in PARTS}


def draw_mean_steps(axes: Axes, runs: Mapping[str, RunData]) -> None:
    """Draw the mean step of each run; every number of the last one is in the legend."""
    micro = {name: run.pipeline.accumulation_steps or 1 for name, run in runs.items()}
    what = "step"
    if len(set(micro.values())) > 1:  # a micro-batch beside a whole batch compares nothing
        what = "update ({} micro-batches before, {} now)".format(*micro.values())
    else:
        micro = dict.fromkeys(micro, 1)
    rows = {name: step_parts(run, micro[name]) for name, run in runs.items()}
    *then, now = rows.values()
    whole_ms = sum(now.values())
    named = {}
    for part, (name, colour) in PARTS.items():
        numbers = f"{ms(now[part])} ms ({now[part] / whole_ms:.0%})"
        for earlier in then:
            numbers = f"{ms(earlier[part])} → {ms(now[part])} ms"
        named[part] = (f"{name} {numbers}", colour)
    if any(run.watched for run in runs.values()):
        del named["copy"]  # somewhere inside the loop's body
        text, colour = named["compute"]
        named["compute"] = (text.replace("compute", "loop body"), colour)
    stack(axes, rows, {part: colour for part, (_, colour) in named.items()})
    for row, spent in enumerate(rows.values()):
        total_ms = sum(spent.values())
        write_beside(axes, total_ms, row, f"{ms(total_ms)} ms")
    legend_above(axes, patches(named.values()))
    axes.set_xlabel(f"ms of the mean {what}: what the device did, or waited for (warm-up left out)")


def line_bars(lines: Lines) -> list[Bar]:
    """Return a bar for each of the costliest lines of a loop and of its workers."""
    loop = [line for line in lines.lines if line.phase != "worker"][:MOST_LINES]
    workers = [line for line in lines.lines if line.phase == "worker"][: MOST_LINES // 2]
    bars = []
    for line in [*loop, *workers]:
        if line.share >= LEAST_SHARE:
            what = f"{line.phase}, {line.function}(): {line.call or line.kind}"
            text = f"{line.share:.0%} {what}"[:LINE_LENGTH]
            colour = COLOURS.get(line.phase, COMPUTE)
            bars.append(Bar(line.place[-PLACE_LENGTH:], line.share, text, colour))
    return bars
