"""The figure of a run, and of the one before it: teeth, the whole run, and the mean step.

The teeth are true intervals, never samples, and only those of a short stretch are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.comparison import ComparedRuns
from labkit.results.ranks import RanksData, delays_of
from labkit.results.readings import driver_readings, readings_of
from labkit.results.run_data import RunData
from labkit.text import noise
from labkit.view import FIGURE_PX
from labkit.view.live_frame import binned
from labkit.view.style import (
    BLUE,
    BOLD,
    COMPUTE,
    COPY,
    GREY,
    INK,
    LOUD,
    PARTS,
    SKY,
    WAIT,
    Lane,
    Picture,
    TextLine,
    draw_lanes,
    legend_above,
    ms,
    our_style,
    page,
    stack,
)

WINDOW_STEPS = 10  # of the slower run, in the stretch that is enlarged; of two runs half as many
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
        return page([*header, (why, LOUD)])[0]
    runs = {"this run": run}
    if before is not None and before.utilization is not None:  # else the header says so
        runs = {"before": before, **runs}
    heights = [*[TEETH] * len(runs), WHOLE, STEP * len(runs)]
    figure, [*teeth, whole, mean_steps] = page(header, heights, FIGURE_PX[before is not None])
    steps_s = WINDOW_STEPS / len(runs) * max(each.step_ms or 0.0 for each in runs.values()) / 1e3
    length_s = min(steps_s, *(each.length_s - each.warm_s for each in runs.values()))
    for axes, (name, each) in zip(teeth, runs.items(), strict=True):
        _draw_teeth(axes, each, length_s)
        title = f"{name}: {each.in_short} (true intervals of {ms(1e3 * length_s)} ms)"
        axes.set_title(title, loc="left")
    teeth[-1].set_xlabel(f"{SINCE}: the marked stretch below, enlarged")
    _draw_whole(whole, runs, teeth[-1].get_xlim())
    _draw_mean_steps(mean_steps, runs)
    return figure


def _draw_teeth(axes: Axes, run: RunData, length_s: float) -> None:
    """Draw lanes of true intervals in the middle of a run."""
    start = (run.warm_s + run.length_s - length_s) / 2
    lanes = [Lane("loop waits for data", [(WAIT, run.stamps[:, 0:2])], 0.6)]
    if not run.watched:
        lanes.append(Lane("copy", [(COPY, run.stamps[:, 2:4])], 0.6))
    lanes.append(Lane(f"{device_of(run)} busy", [(COMPUTE, run.busy)], 2.0))
    draw_lanes(axes, lanes, start, start + length_s)


def _draw_whole(axes: Axes, runs: Mapping[str, RunData], marked_s: tuple[float, float]) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    run = runs["this run"]
    shares, edges = binned(run)
    label = f"busy share of every {ms(1e3 * edges[1])} ms"
    look = {"facecolor": (COMPUTE, 0.35), "edgecolor": COMPUTE, "linewidth": 1.3}
    axes.stairs(shares, edges, fill=True, label=label, **look)
    look = {"facecolor": "none", "edgecolor": INK, "hatch": "////", "linewidth": 0}
    axes.axvspan(0, run.warm_s, label="warm-up, left out", **look)
    for name, (seconds, samples) in curves(run).items():
        axes.plot(seconds, samples, ".-", markersize=2.5, lw=0.8, c=INSTRUMENTS[name], label=name)
    if "before" in runs:
        axes.stairs(*binned(runs["before"]), color=INK, label="before")
    axes.axvspan(*marked_s, facecolor="none", edgecolor=INK, linewidth=0.9)
    mean = run.utilization or 0.0
    axes.axhline(mean, color=INK, linestyle="--", linewidth=1)
    look = {"transform": axes.get_yaxis_transform(), "va": "center", "weight": "bold"}
    axes.text(1.01, mean, f"mean\n{run.busy_text}", **look)
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


def _draw_mean_steps(axes: Axes, runs: Mapping[str, RunData]) -> None:
    """Draw the mean step of each run; every number of the last one is in the legend.

    Where batches are accumulated it is that of an update: a micro-batch beside a whole batch
    compares nothing.
    """
    micro = {name: run.pipeline.accumulation_steps or 1 for name, run in runs.items()}
    rows = {
        name: {part: micro[name] * (getattr(run, f"{part}_ms") or 0.0) for part in PARTS}
        for name, run in runs.items()
    }
    named = {}
    for part, (name, colour) in PARTS.items():
        if part == "compute" and runs["this run"].watched:
            name = "loop body"  # copies included
        numbers = " → ".join(ms(spent[part]) for spent in rows.values())
        named[part] = (f"{name} {numbers} ms", colour)
    stack(axes, rows, named)
    for row, spent in enumerate(rows.values()):
        total_ms = sum(spent.values())
        axes.text(total_ms, row, f"  {ms(total_ms)} ms", va="center")
    what = "update" if max(micro.values()) > 1 else "step"
    axes.set_xlabel(f"ms of the mean {what}: what the device did, or waited for (warm-up left out)")


# The lines above it


def header_of(
    title: str, texts: Iterable[str], runs: Sequence[RunData | RanksData]
) -> list[TextLine]:
    """Return a header: whether the first run was made elsewhere, the title, texts, machines."""
    recorded = [(run.mark, LOUD) for run in runs[:1] if run.mark]
    machines = dict.fromkeys(run.machine.line for run in runs if run.machine.kind != "unknown")
    return [*recorded, (title, BOLD), *((text, GREY) for text in [*texts, *machines])]


def run_header(run: RunData, before: RunData | None) -> list[TextLine]:
    """Return the header of one run's figure; `before` is drawn beside it."""
    runs = [run] if before is None else [run, before]
    title = "No numbers"
    busy = ", ".join(filter(None, [f"{device_of(run)} busy {run.busy_text}", run.mfu_text]))
    if run.throughput is not None:
        title = f"{run.throughput:,.0f} {run.unit}/s, {busy}"
    texts = [
        delays_of(runs),
        as_typed(run.asked.changed()) or "the default pipeline",
        f"not applied on this device: {', '.join(run.not_applied)}" if run.not_applied else "",
        f"MFU of {run.peak}" if run.mfu_text else "",
    ]
    if before is not None:
        compared = ComparedRuns(before, run)
        if compared.speedup:
            title = f"{changes(compared)}: {compared.speedup:.1f}x the throughput, {busy}"
        missing = "" if before.throughput else f"{before.outcome}, without numbers to draw"
        texts += [f"before: {note}" for note in (before.mark, missing) if note]
    return header_of(title, texts, runs) + doubts(run)


def changes(compared: ComparedRuns) -> str:
    """Say which knobs differ: "num_workers 0 → 6"."""
    moved = [f"{knob} {old} → {new}" for knob, (old, new) in compared.changed.items()]
    return ", ".join(moved) or "nothing changed"


def doubts(run: RunData) -> list[TextLine]:
    """Return the lines that say what the numbers are worth: NOISY, stopped, failed."""
    lines = [noise(run.spread or 0.0)] if run.noisy else []
    if run.outcome != "finished":
        lines.append(f"{run.ended}: {run.error}" if run.error else run.ended)
    return [(line, LOUD) for line in lines]


def device_of(run: RunData) -> str:
    """Return what the device is called in a figure: CPU, GPU, or device where it is unknown."""
    kind = run.machine.kind
    return "device" if kind == "unknown" else kind.upper()
