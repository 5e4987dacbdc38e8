"""The figure of one run: the teeth, the utilization over the whole run, and the mean step.

Two axes on one clock (seconds since the first batch was asked for). The teeth are true intervals,
never samples, and only those of a short window are drawn, so that a run of a million steps is as
quick to draw as one of a hundred.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

from labkit.results.run import Run
from labkit.show.analysis_figures import curves
from labkit.show.run_header import GREY, LOUD, device_of, run_header
from labkit.show.step_parts import step_parts
from labkit.show.style import (
    BEFORE,
    COMPUTE,
    COPY,
    PARTS,
    WAIT,
    legend_above,
    ms,
    our_style,
    page,
    percent,
)

TEETH, MAX_TEETH = 10, 24  # steps in the window: two rounds of the workers where they are many
STEPS_A_BIN, MAX_BINS = 3, 120  # of the utilization: finer bins would show single teeth, aliased
LABELLED = 0.07  # a part at least this wide has its percentage written in


@our_style
def draw(run: Run, before: Run | None = None) -> Figure:
    """Draw `run`; the utilization and the mean step of `before` beside it, where given.

    A run too short to have numbers gets a figure that says so, and why.
    """
    if run.utilization is None:
        return _without_numbers(run)
    header = run_header(run, before)
    if before is not None and before.utilization is None:
        before = None  # the header says so
    panels = [(0.30, 1.25), (0.72, 1.55), (0.80, 0.72 if before else 0.42)]
    figure, (teeth, whole, step) = page(header, panels)
    window = teeth_window(run)
    _draw_teeth(teeth, run, window)
    _draw_whole(whole, run, before, window)
    _draw_steps(step, run, before)
    return figure


def _without_numbers(run: Run) -> Figure:
    why = "Nothing to draw: utilization needs two steps or more, and the warm-up is left out."
    return page([*run_header(run), (why, GREY if run.error else LOUD)], [])[0]


# -- the teeth -----------------------------------------------------------------------------------


def teeth_window(run: Run) -> tuple[int, float, float]:
    """Return (steps, start in s, end in s) of a short window in the middle of what was measured."""
    first = max(run.warmup, 1)
    wanted = min(max(TEETH, 2 * (run.pipeline.num_workers or 0)), MAX_TEETH)
    count = min(wanted, run.steps - first)
    start = first + (run.steps - first - count) // 2
    ends = run.stamps[:, 5]
    left, right = float(ends[start - 1]), float(ends[start + count - 1])
    return count, left, max(right, left + 1e-6)


def _draw_teeth(axes: Axes, run: Run, window: tuple[int, float, float]) -> None:
    """Lanes of true intervals: what the device did, and what the loop waited for meanwhile."""
    count, start, end = window
    device = device_of(run)
    lanes = [("loop waits for data", (0, 1), 0.6, WAIT), (f"{device} busy", (4, 5), 2.0, COMPUTE)]
    if device != "CPU":  # on a CPU there is no copy to speak of
        lanes.insert(1, ("copy", (2, 3), 0.6, COPY))
    bottom, ticks = 0.0, []
    for _, columns, tall, colour in lanes:
        intervals = run.stamps[:, columns]
        seen = intervals[(intervals[:, 1] > start) & (intervals[:, 0] < end)]
        spans = [(left, right - left) for left, right in np.clip(seen, start, end)]
        axes.broken_barh(spans, (bottom, tall), facecolors=colour, linewidth=0)
        ticks.append(bottom + tall / 2)
        bottom += tall + 0.25
    axes.set_yticks(ticks, [lane[0] for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.15, bottom)
    axes.set_xlim(start, end)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_xlabel("s since the first batch was asked for: the marked stretch below, enlarged")
    steps = f"{count} step" + ("" if count == 1 else "s")
    width = ms((end - start) * 1e3)
    axes.set_title(f"The teeth: true intervals of {steps} ({width} ms)", loc="left")


# -- the whole run -------------------------------------------------------------------------------


def _draw_whole(axes: Axes, run: Run, before: Run | None, window: tuple[int, float, float]) -> None:
    """Utilization from the true intervals, the instruments' own samples, warm-up and mean."""
    end = run.busy[-1, 1]
    handles = _draw_warm_up(axes, run)
    handles += [_draw_instrument(axes, *instrument) for instrument in curves(run)]
    if before:
        _draw_curve(axes, before, fill=False, color=BEFORE, linewidth=1.0, alpha=0.75, zorder=3)
        handles.append(Line2D([], [], color=BEFORE, linewidth=1.0, label="before"))
    bin_ms = _draw_curve(axes, run, fill=True, facecolor=COMPUTE, alpha=0.35, linewidth=0)
    _draw_curve(axes, run, fill=False, color=COMPUTE, linewidth=1.3, zorder=4)
    width = f"{ms(bin_ms)} ms" if bin_ms < 1000 else f"{ms(bin_ms / 1e3)} s"
    what = "gaps between kernels included" if run.utilization_is_upper_bound else "true intervals"
    share = f"busy share of every {width} ({what})"
    handles.insert(0, Patch(facecolor=COMPUTE, alpha=0.6, label=share))
    axes.axvspan(*window[1:], facecolor="none", edgecolor="black", linewidth=0.9, zorder=2)
    start = run.stamps[max(run.warmup, 1) - 1, 5]
    mean = run.utilization
    axes.plot([start, end], [mean, mean], "--", color="black", linewidth=1, zorder=5)
    axes.axhline(mean, color="black", linestyle=":", linewidth=0.5)  # leads on to its number
    bound = "\n≤" if run.utilization_is_upper_bound else ""  # one line would be too long
    _margin_note(axes, mean, f"mean{bound} {percent(mean)}")
    axes.set_xlim(0, max(end, before.busy[-1, 1] if before else 0))
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel(f"{device_of(run)} busy")
    axes.set_xlabel("s since the first batch was asked for: the whole run")
    legend_above(axes, handles)


def _draw_curve(axes: Axes, run: Run, **style: Any) -> float:
    """Draw a run's utilization in equal bins; return their width in ms."""
    bins = int(np.clip(run.steps // STEPS_A_BIN, 4, MAX_BINS))
    _, shares = run.timeline(bins)
    edges = np.linspace(0, run.busy[-1, 1], bins + 1)
    axes.stairs(shares, edges, **style)
    return edges[1] * 1e3


def _draw_warm_up(axes: Axes, run: Run) -> list[Patch]:
    if not run.warmup:
        return []
    axes.axvspan(0, run.stamps[run.warmup - 1, 5], color="#EEEEEE", linewidth=0, zorder=0)
    return [Patch(facecolor="#E4E4E4", label="warm-up")]


def _draw_instrument(axes: Axes, label: str, seconds: Any, shares: Any, style: dict) -> Line2D:
    """Draw an instrument's samples as they are; a missing one is NaN, and breaks the line."""
    return axes.plot(seconds, shares, label=label, **style)[0]


def _margin_note(axes: Axes, y: float, text: str) -> None:
    axes.annotate(
        text, (1, y), (5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        va="center", fontweight="bold", annotation_clip=False,
    )  # fmt: skip


# -- the mean step -------------------------------------------------------------------------------


def _draw_steps(axes: Axes, run: Run, before: Run | None) -> None:
    """A stacked bar of the mean step; every number is in the legend, the wide shares inside."""
    bars = [("this run", step_parts(run))] + ([("before", step_parts(before))] if before else [])
    longest = max(sum(parts.values()) for _, parts in bars)
    for row, (_, parts) in enumerate(bars):
        left, total = 0.0, sum(parts.values())
        for part, value in parts.items():
            axes.barh(row, value, left=left, height=0.72, color=PARTS[part][1], linewidth=0)
            if value >= LABELLED * longest:
                axes.text(
                    left + value / 2, row, percent(value / total), ha="center", va="center",
                    color="white" if part == "copy" else "black",
                )  # fmt: skip
            left += value
        axes.annotate(
            f"{ms(total)} ms", (total, row), (5, 0), textcoords="offset points", va="center",
            fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, longest or 1)
    axes.set_xlabel("ms of the mean step: what the device did, or waited for (warm-up left out)")
    now, old = bars[0][1], bars[-1][1] if before else None
    parts = [part for part in PARTS if part != "copy" or not run.watched]
    handles = [_part_handle(part, now, old) for part in parts]
    if run.watched:  # forward, copies and logging alike
        handles[parts.index("compute")].set_label(
            handles[parts.index("compute")].get_label().replace("compute", "loop body")
        )
    legend_above(axes, handles)


def _part_handle(part: str, now: dict[str, float], old: dict[str, float] | None) -> Patch:
    name, colour = PARTS[part]
    if old:
        text = f"{name} {ms(old[part])} → {ms(now[part])} ms"
    else:
        text = f"{name} {ms(now[part])} ms ({percent(now[part] / sum(now.values()))})"
    return Patch(facecolor=colour, label=text)
