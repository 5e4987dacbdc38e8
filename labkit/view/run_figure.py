"""The figures of runs: one with its teeth, one's ranks, and a sweep of them; those of traces.

A run as a file to share is a picture, a table of its steps, or a page with both.

The teeth are true intervals, never samples, and only those of a short stretch are drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results import saving
from labkit.results.privacy import for_others
from labkit.results.ranks import RanksData, delays_of
from labkit.results.run_data import RunData
from labkit.results.templates import template
from labkit.text import counted
from labkit.view import PARTS
from labkit.view.live_frame import busy_curve, mean_step
from labkit.view.rows_figure import plot
from labkit.view.style import (
    GREEN,
    INK,
    Picture,
    draw_lanes,
    legend_above,
    our_style,
    page,
    stack,
)

WINDOW_STEPS = 10  # of the slower run, in the stretch that is enlarged; of two runs half as many
FIGURE_IN = 7.2  # height of a run's figure; the live view has its shape (see live.css)
TEETH, WHOLE, STEP = 1.1, 1.4, 0.25  # heights of the axes, relative to each other
AROUND_IN, ROW_IN = 1.0, 0.3  # heights of what is around stacks, and of each, inches
AROUND_LANES_IN, LANE_IN = 0.5, 0.26
SINCE = "s since the first batch was asked for"
LANES = ("loop waits for data", "copy", "device busy")
RANK_PARTS = {  # part of RankTimes: its name, as stacked
    "wait": "waiting for data",
    "compute": "compute",
    "others": "waiting for another rank",
    "transfer": "exchanging gradients",
    "other": "other",
}


@our_style
def draw_run(run: RunData, before: RunData | None = None, change: str = "") -> Picture:
    """Draw `run`; where given, `before` beside it, and what a `change` brought in the title.

    A run too short to have numbers gets a figure that says so, and why; one before is left out.
    """
    notes = [repr(run), run.machine.line]
    if run.utilization is None:
        why = "utilization needs two steps or more, without the warm-up, and the device's own times"
        return page(f"Nothing to draw: {why}.", notes)[0]
    runs = {"this run": run}
    if before and before.utilization is not None:
        runs = {"before": before, **runs}
    heights = [*[TEETH] * len(runs), WHOLE, STEP * len(runs)]
    title = f"{change}{run.in_short}"
    figure, [*teeth, whole, mean_steps] = page(title, notes, heights, FIGURE_IN)
    steps_s = WINDOW_STEPS / len(runs) * max(each.step_ms or 0.0 for each in runs.values()) / 1e3
    length_s = min(steps_s, *(each.length_s - each.warm_s for each in runs.values()))
    for axes, (name, each) in zip(teeth, runs.items(), strict=True):
        start = (each.warm_s + each.length_s - length_s) / 2
        spans = np.split(each.stamps, len(LANES), axis=1)
        draw_lanes(axes, dict(zip(LANES, spans, strict=True)), start, start + length_s)
        axes.set_title(f"{name}: {each.mark or each.machine.name}, {each.in_short}", loc="left")
    teeth[-1].set_xlabel(f"{SINCE}: the marked stretch below, enlarged")
    _draw_whole(whole, run, teeth[-1].get_xlim())
    _draw_mean_steps(mean_steps, runs)
    return figure


def _draw_whole(axes: Axes, run: RunData, marked_s: tuple[float, float]) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    shares, edges = busy_curve(run)
    label = f"busy share of every {1e3 * edges[1]:.3g} ms"
    axes.stairs(shares, edges, fill=True, label=label, color=GREEN, alpha=0.4)
    seconds, samples = run.readings("gpu_now")  # a missing one is NaN: a gap
    if np.isfinite(samples).any():
        axes.plot(seconds, samples, ".-", markersize=2.5, linewidth=0.8, label="nvidia-smi (NVML)")
    axes.axvspan(0, run.warm_s, label="warm-up, left out", color=INK, alpha=0.3)
    axes.axvspan(*marked_s, facecolor="none", edgecolor=INK)
    mean = run.utilization or 0.0
    axes.axhline(mean, label=f"mean: {run.busy_text}", color=INK, linestyle="--", linewidth=1)
    axes.set(xlim=(0, run.length_s), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(ylabel="device busy", xlabel=f"{SINCE}: the whole run")
    legend_above(axes)


def _draw_mean_steps(axes: Axes, runs: Mapping[str, RunData]) -> None:
    """Draw the mean step of each run by part."""
    means = {f"{name}: {each.step_ms:.3g} ms": mean_step(each) for name, each in runs.items()}
    names = {part: name for part, (name, _) in PARTS.items()}
    if runs["this run"].watched:
        names["compute"] = "loop body"  # copies included
    stack(axes, pandas.DataFrame(means).T.rename(columns=names))
    axes.set_xlabel("ms of the mean step: what the device did, or waited for (warm-up left out)")


@our_style
def draw_ranks(ranks: RanksData, bottleneck: str) -> Figure:
    """Draw `ranks`, and name the `bottleneck`; a run without numbers has a figure that says why."""
    times = ranks.times
    notes = [repr(ranks), ranks.machine.line]
    count = counted(ranks.world_size, "rank")
    if times is None:
        return page(f"{count}, no numbers", notes)[0]
    title = f"{count}: {ranks.throughput:,.0f} samples/s together; bottleneck: {bottleneck}"
    rows = 100 * times.rename(index=lambda rank: f"rank {rank}", columns=RANK_PARTS)
    return draw_stacks(
        title, notes, rows[[*RANK_PARTS.values()]], "% of the wall time after warm-up"
    )


@our_style
def draw_stacks(title: str, notes: Iterable[str], widths: pandas.DataFrame, what: str) -> Picture:
    """Draw a stack for each row of `widths`, which are of `what`."""
    figure, [axes] = page(title, notes, [AROUND_IN + ROW_IN * len(widths)])
    stack(axes, widths)
    axes.set_xlabel(what)
    return figure


@our_style
def draw_timeline(
    title: str,
    lanes: Mapping[str, np.ndarray],
    start_ms: float | None = None,
    end_ms: float | None = None,
) -> Picture:
    """Draw when each lane of a trace was active; lines mark the steps.

    Args:
        title: What it is a trace of.
        lanes: (n, 2) starts and ends in ms, by what is active, or "rank 3: " and that; also of the
            "steps", which may be missing.
        start_ms: Where the picture begins: with the first step, else with the first activity.
        end_ms: Where it ends: with the second step, else with the last activity.
    """
    active = {name: spans for name, spans in lanes.items() if name != "steps"}
    steps = lanes.get("steps", np.empty((0, 2)))
    shown = steps[:2] if len(steps) else np.concatenate([*lanes.values()])
    start = shown.min() if start_ms is None else start_ms
    end = shown.max() if end_ms is None else end_ms
    figure, [axes] = page(title, [], [AROUND_LANES_IN + LANE_IN * len(active)])
    draw_lanes(axes, active, start, end)
    axes.vlines(steps[:, 0], -1, len(active), INK, linewidth=0.8)
    axes.set_xlabel("ms")
    return figure


def draw_sweep(frame: pandas.DataFrame, knobs: list[str], runs: Sequence[RunData]) -> Figure:
    """Draw throughput against a sweep's first knob, a line for each other combination.

    Numbers are drawn to scale, names have bars: see `lk.plot`. A run without numbers is a gap; a
    note says why.
    """
    knob, *others = knobs
    rows = frame.rename(columns={"throughput": "samples/s"})
    rows["setting"] = rows[others].astype(str).agg(", ".join, axis="columns")
    rates = rows["samples/s"].astype(float)
    title = " and ".join(knobs)
    if rates.count() > 1:
        title += f": {rates.max() / rates.min():.1f}x from slowest to fastest"
    marks = dict.fromkeys(run.mark for run in runs)
    title = "; ".join(filter(None, [*marks, title, delays_of(runs)]))
    return plot(rows, knob, "samples/s", "setting" if others else None, title=title)


def export(
    run: RunData, path: str | os.PathLike[str], verdict: str, overwrite: bool = False
) -> Path:
    """Write a run in the format of the path's suffix: .html, .csv, or one of matplotlib's.

    Args:
        run: A run with steps.
        path: Where to. A page of HTML is self-contained, and can be mailed.
        verdict: On the run, for the page.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        ValueError: the suffix is none of these; matplotlib says which of its own there are.
        FileKept: such a file is there.
    """
    path = Path(path)
    suffix = path.suffix
    if suffix == ".html":
        return saving.save_text(path, html_page(run, verdict), overwrite)
    if suffix == ".csv":
        return saving.save_text(path, run.frame.to_csv(), overwrite)
    with saving.replacing(path, overwrite) as file:
        draw_run(run).savefig(file, format=suffix.lower().lstrip(".") or "png")
    return path


def html_page(run: RunData, verdict: str) -> str:
    """Return a self-contained page of HTML: the `verdict`, the pictures, settings, machine."""
    return template("report.html").render(
        run=run,
        verdict=for_others(verdict),
        picture=draw_run(run).html("Utilization over the run, and its mean step"),
        settings=as_typed(run.pipeline.changed()) or "the defaults",
    )
