"""The figures of runs: one with its teeth, one's ranks, and a sweep of them.

The teeth are true intervals, never samples, and only those of a short stretch are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.results.ranks import RanksData, delays_of
from labkit.results.run_data import RunData
from labkit.text import counted
from labkit.view import FIGURE_PX
from labkit.view.live_frame import binned
from labkit.view.rows_figure import plot
from labkit.view.style import (
    COMPUTE,
    INK,
    PARTS,
    Picture,
    draw_lanes,
    legend_above,
    our_style,
    page,
    stack,
)

WINDOW_STEPS = 10  # of the slower run, in the stretch that is enlarged; of two runs half as many
TEETH, WHOLE, STEP = 1.1, 1.4, 0.25  # heights of the axes, relative to each other
AROUND_IN, ROW_IN = 1.0, 0.3  # heights of what is around rows, and of a row, inches
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
def draw_run(run: RunData, before: RunData | None = None, brought: str = "") -> Picture:
    """Draw `run`; where given, `before` beside it, and what a change `brought` in the title.

    A run too short to have numbers gets a figure that says so, and why.
    """
    runs = {"this run": run} if before is None else {"before": before, "this run": run}
    notes = [f"{name}: {each!r}" for name, each in runs.items() if each.utilization is None]
    if run.utilization is None:
        why = "utilization needs two steps or more, without the warm-up, and the device's own times"
        return page(f"Nothing to draw: {why}.", [*notes, run.machine.line])[0]
    title = f"{brought}{run.in_short}"
    runs = {name: each for name, each in runs.items() if each.utilization is not None}
    heights = [*[TEETH] * len(runs), WHOLE, STEP * len(runs)]
    notes += [repr(run), run.machine.line]
    figure, [*teeth, whole, mean_steps] = page(title, notes, heights, FIGURE_PX[before is not None])
    steps_s = WINDOW_STEPS / len(runs) * max(each.step_ms or 0.0 for each in runs.values()) / 1e3
    length_s = min(steps_s, *(each.length_s - each.warm_s for each in runs.values()))
    for axes, (name, each) in zip(teeth, runs.items(), strict=True):
        start = (each.warm_s + each.length_s - length_s) / 2
        spans = each.stamps[:, 0:2], each.stamps[:, 2:4], each.busy
        draw_lanes(axes, dict(zip(LANES, spans, strict=True)), start, start + length_s)
        axes.set_title(f"{name}: {each.mark or each.machine.name}, {each.in_short}", loc="left")
    teeth[-1].set_xlabel(f"{SINCE}: the marked stretch below, enlarged")
    _draw_whole(whole, runs, teeth[-1].get_xlim())
    _draw_mean_steps(mean_steps, runs)
    return figure


def _draw_whole(axes: Axes, runs: Mapping[str, RunData], marked_s: tuple[float, float]) -> None:
    """Draw utilization from the true intervals, the instruments' samples, warm-up and mean."""
    run = runs["this run"]
    shares, edges = binned(run)
    label = f"busy share of every {1e3 * edges[1]:.3g} ms"
    axes.stairs(shares, edges, fill=True, label=label, color=COMPUTE, alpha=0.4)
    seconds, samples = run.readings("gpu_now")  # a missing one is NaN: a gap
    if np.isfinite(samples).any():
        axes.plot(seconds, samples, ".-", markersize=2.5, linewidth=0.8, label="nvidia-smi (NVML)")
    if "before" in runs:
        axes.stairs(*binned(runs["before"]), color=INK, label="before")
    axes.axvspan(0, run.warm_s, label="warm-up, left out", color=INK, alpha=0.3)
    axes.axvspan(*marked_s, facecolor="none", edgecolor=INK)
    mean = run.utilization or 0.0
    axes.axhline(mean, color=INK, linestyle="--", linewidth=1)
    place = {"transform": axes.get_yaxis_transform(), "va": "center", "weight": "bold"}
    axes.text(1.01, mean, f"mean\n{run.busy_text}", **place)
    axes.set(xlim=(0, max(each.length_s for each in runs.values())), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(ylabel="device busy", xlabel=f"{SINCE}: the whole run")
    legend_above(axes)


def _draw_mean_steps(axes: Axes, runs: Mapping[str, RunData]) -> None:
    """Draw the mean step of each run by part."""
    spent = {
        f"{name}: {each.step_ms:.3g} ms": {
            label: getattr(each, f"{part}_ms") or 0.0 for part, (label, _) in PARTS.items()
        }
        for name, each in runs.items()
    }
    body = {"compute": "loop body"} if runs["this run"].watched else {}  # copies included
    stack(axes, pandas.DataFrame(spent).T.rename(columns=body))
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
    figure, [axes] = page(title, notes, [AROUND_IN + ROW_IN * len(times)])
    rows = times.rename(index=lambda rank: f"rank {rank}", columns=RANK_PARTS)
    stack(axes, rows.loc[:, [*RANK_PARTS.values()]])
    axes.set(xlabel="share of wall time, warm-up left out", xlim=(0, 1))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
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
