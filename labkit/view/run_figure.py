"""The figures of one run, and of the lines of its code.

One run: the teeth and the utilization over the whole run, two axes on one clock, and the mean step.
The teeth are true intervals, never samples, and only those of a short window are drawn, so that a
run of a million steps is as quick to draw as one of a hundred.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

from labkit.diagnosis.hot_lines import Lines
from labkit.results.run import Run
from labkit.results.step_classes import AHEAD
from labkit.view import style
from labkit.view.analysis_figures import curves
from labkit.view.display import FIGURE_PX
from labkit.view.primitives import Bar, hbars, rows_in, stack
from labkit.view.run_header import BOLD, GREY, LOUD, device_of, run_header
from labkit.view.style import BEFORE, COMPUTE, COPY, PARTS, WAIT, ms, our_style, page

TEETH = 10  # steps in the window
MAX_TEETH = 24  # two rounds of the workers, where they are many
STEPS_A_BIN = 3  # of the utilization: finer bins would show single teeth, aliased
MAX_BINS = 120
LABELLED = 0.07  # a part at least this wide has its number written in
MOST = 6  # lines that are drawn, of workers half as many
LEAST = 0.02  # their share
COLOURS = {"waiting": WAIT, "worker": WAIT, "between": BEFORE}  # of lines, by their phase
BODY = {  # of a loop's body: (name, colour), by `Lines.body`
    "forward": ("forward", "#009E73"),
    "backward": ("backward", "#56B4E9"),
    "optimizer": ("optimizer", "#0072B2"),
    "torch": ("other torch", "#99DDBB"),
    "sync": ("waits for the device", "#AA4499"),
    "validation": ("validation", "#F0E442"),
    "python": ("Python", "#D55E00"),
    "logging": ("logging, files", "#882255"),
    "waiting": ("sleeps, locks, network", "#E69F00"),
}


@our_style
def draw(run: Run, before: Run | None = None) -> Figure:
    """Draw `run`; the utilization and the mean step of `before` beside it, where given.

    A run too short to have numbers gets a figure that says so, and why.
    """
    header = run_header(run, before)
    if run.utilization is None:
        why = "Nothing to draw: utilization needs two steps or more, and the warm-up is left out."
        return page([*header, (why, GREY if run.error else LOUD)], [])[0]
    if before is not None and before.utilization is None:
        before = None  # the header says so
    mean_in, spaces_in = rows_in(2 if before else 1), (0.30, 0.72, 0.80)
    free_in = style.room_in(FIGURE_PX[before is not None], header) - mean_in - sum(spaces_in)
    tall_in = (max(0.9, 0.45 * free_in), max(1.1, 0.55 * free_in), mean_in)
    panels = list(zip(spaces_in, tall_in, strict=True))
    bars = line_bars(run.lines) if run.watched else []
    if bars:
        panels += _line_panels(run.lines, bars)
    figure, (teeth, whole, step, *rest) = page(header, panels)
    window = teeth_window(run)
    _draw_teeth(teeth, run, window)
    _draw_whole(whole, run, before, window)
    draw_mean_steps(step, run, before)
    if bars:
        _draw_lines(rest, run.lines, bars)
    return figure


def share_text(share: float) -> str:
    """Return what is written into a part of a bar of shares: nothing where it is narrow."""
    return f"{share:.0%}" if share >= LABELLED else ""


def teeth_window(run: Run) -> tuple[int, float, float]:
    """Return (steps, start in s, end in s) of a short window in the middle of what was measured."""
    start, count = _window_steps(run)
    ends = run.stamps[start - 1 : start + count, 5]
    left, right = float(ends[0]), float(ends[-1])
    return count, left, max(right, left + 1e-6)


def _window_steps(run: Run) -> tuple[int, int]:
    """Return the first step of that window, and how many it has."""
    first = max(run.warmup, 1)
    wanted = min(max(TEETH, 2 * (run.pipeline.num_workers or 0)), MAX_TEETH)
    count = min(wanted, run.steps - first)
    return first + (run.steps - first - count) // 2, count


def _draw_teeth(axes: Axes, run: Run, window: tuple[int, float, float]) -> None:
    """Lanes of true intervals: what the device did, and what the loop waited for meanwhile."""
    count, start, end = window
    device = device_of(run)
    lanes = [("loop waits for data", (0, 1), 0.6, WAIT), ("copy", (2, 3), 0.6, COPY)]
    lanes = [*(lanes[:1] if run.watched else lanes), (f"{device} busy", (4, 5), 2.0, COMPUTE)]
    bottom = 0.0
    ticks = []
    first, steps = _window_steps(run)
    near = run.stamps[max(0, first - AHEAD) : first + steps + AHEAD]  # the host may be ahead
    for _, columns, tall, colour in lanes:
        intervals = near[:, columns]
        seen = intervals[(intervals[:, 1] > start) & (intervals[:, 0] < end)]
        spans = [(left, right - left) for left, right in np.clip(seen, start, end)]
        axes.broken_barh(spans, (bottom, tall), color=colour, linewidth=0.4)  # seen, if short
        ticks.append(bottom + tall / 2)
        bottom += tall + 0.25
    axes.set_yticks(ticks, [lane[0] for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(start, end), ylim=(-0.15, bottom))
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_xlabel("s since the first batch was asked for: the marked stretch below, enlarged")
    steps = f"{count} step" + ("" if count == 1 else "s")
    width = ms((end - start) * 1e3)
    axes.set_title(f"The teeth: true intervals of {steps} ({width} ms)", loc="left")


def _draw_whole(axes: Axes, run: Run, before: Run | None, window: tuple[int, float, float]) -> None:
    """Utilization from the true intervals, the instruments' own samples, warm-up and mean."""
    end = run.length_s
    mean = run.utilization or 0.0
    bound = run.utilization_is_upper_bound
    handles = []
    if run.warmup:
        axes.axvspan(0, _end_of(run, run.warmup), color="#EEEEEE", linewidth=0, zorder=0)
        handles.append(Patch(facecolor="#E4E4E4", label="warm-up"))
    for label, seconds, shares, look in curves(run):  # a missing sample is NaN: a gap
        handles += axes.plot(seconds, shares, label=label, **look)
    if before:
        _draw_curve(axes, before, fill=False, color=BEFORE, linewidth=1.0, alpha=0.75, zorder=3)
        handles.append(Line2D([], [], color=BEFORE, linewidth=1.0, label="before"))
    bin_ms = _draw_curve(axes, run, fill=True, facecolor=COMPUTE, alpha=0.35, linewidth=0)
    _draw_curve(axes, run, fill=False, color=COMPUTE, linewidth=1.3, zorder=4)
    width = f"{ms(bin_ms)} ms" if bin_ms < 1000 else f"{ms(bin_ms / 1e3)} s"
    what = "gaps between kernels included" if bound else "true intervals"
    share = f"busy share of every {width} ({what})"
    handles.insert(0, Patch(facecolor=COMPUTE, alpha=0.6, label=share))
    axes.axvspan(*window[1:], facecolor="none", edgecolor="black", linewidth=0.9, zorder=2)
    start = _end_of(run, max(run.warmup, 1))
    axes.plot([start, end], [mean, mean], "--", color="black", linewidth=1, zorder=5)
    axes.axhline(mean, color="black", linestyle=":", linewidth=0.5)  # leads on to its number
    at_most = "\n≤" if bound else ""  # one line would be too long
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
    axes.set(xlim=(0, max(end, before.length_s if before else 0)), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel(f"{device_of(run)} busy")
    axes.set_xlabel("s since the first batch was asked for: the whole run")
    style.legend_above(axes, handles)


def _end_of(run: Run, steps: int) -> float:
    """Return when so many steps were over, s."""
    return float(run.stamps[steps - 1, 5])


def _draw_curve(axes: Axes, run: Run, **look: Any) -> float:
    """Draw a run's utilization in equal bins; return their width in ms."""
    bins = int(np.clip(run.steps // STEPS_A_BIN, 4, MAX_BINS))
    edges = np.linspace(0, run.length_s, bins + 1)
    axes.stairs(run.timeline(bins)[1], edges, **look)
    return edges[1] * 1e3


def step_parts(run: Run) -> dict[str, float]:
    """Return the mean step's parts in ms: every moment in one of `PARTS`, warm-up excluded."""
    return {part: getattr(run, f"{part}_ms") or 0.0 for part in PARTS}


def draw_mean_steps(axes: Axes, run: Run, before: Run | None) -> None:
    """A stacked bar of the mean step; every number is in the legend, the wide ones inside too."""
    rows = [("this run", step_parts(run))]
    named = {}
    what = "step"
    if before:
        rows.append(("before", step_parts(before)))
        micro = [one.pipeline.accumulation_steps or 1 for one in (run, before)]
        if micro[0] != micro[1]:  # a micro-batch beside a whole batch compares nothing
            what = f"update ({micro[0]} micro-batches, {micro[1]} before)"
            rows = [
                (name, {part: value * count for part, value in parts.items()})
                for (name, parts), count in zip(rows, micro, strict=True)
            ]
    totals = [sum(parts.values()) for _, parts in rows]
    for part, (name, colour) in PARTS.items():
        now = rows[0][1][part]
        old = rows[-1][1][part]
        if run.watched and part == "copy":
            continue  # somewhere inside the loop's body
        name = "loop body" if run.watched and part == "compute" else name
        numbers = f"{ms(old)} → {ms(now)} ms" if before else f"{ms(now)} ms ({now / totals[0]:.0%})"
        named[part] = (f"{name} {numbers}", colour)
    stack(
        axes,
        [(*row, f"{ms(total)} ms") for row, total in zip(rows, totals, strict=True)],
        named,
        f"ms of the mean {what}: what the device did, or waited for (warm-up left out)",
        inside=lambda value: ms(value) if value >= LABELLED * max(totals) else "",
    )


@our_style
def draw_lines(lines: Lines) -> Figure:
    """Draw what the loop's body was made of, and a bar for each of the costliest lines."""
    bars = line_bars(lines)
    if not bars:
        return page([(f"No lines: {lines.missing or 'none has 2 % of the time'}.", GREY)], [])[0]
    top = lines.lines[0]
    title = f"{top.share:.0%} of the time is in {top.what}"
    figure, axes = page([(title, BOLD)], _line_panels(lines, bars))
    _draw_lines(axes, lines, bars)
    return figure


def _line_panels(lines: Lines, bars: list[Bar]) -> list[tuple[float, float]]:
    body = [(0.80, rows_in(1))] if lines.body else []
    return [*body, (0.45, rows_in(len(bars)))]


def _draw_lines(axes: list[Axes], lines: Lines, bars: list[Bar]) -> None:
    """Draw the body of the loop as one bar of its parts, and below it the costliest lines."""
    if found := lines.body:
        known = {part: look for part, look in BODY.items() if found.get(part, 0.0) >= LEAST}
        named = {p: (f"{name} {found[p]:.0%}", colour) for p, (name, colour) in known.items()}
        stack(axes[0], [("loop body", found, "")], named, "", inside=share_text)
        axes[0].set_xticks([])
        axes[0].spines["bottom"].set_visible(False)
    hbars(axes[-1], bars, "share of the time (of workers: of their work), by line of your code")
    axes[-1].set_xticks([tick for tick in axes[-1].get_xticks() if tick <= 1])
    axes[-1].xaxis.set_major_formatter(PercentFormatter(1))


def line_bars(lines: Lines) -> list[Bar]:
    """Return a bar for each of the costliest lines of a loop and of its workers."""
    found = lines.lines
    loop = [line for line in found if line.phase != "worker"][:MOST]
    workers = [line for line in found if line.phase == "worker"][: MOST // 2]
    bars = []
    for line in [*loop, *workers]:
        if line.share >= LEAST:
            text = f"{line.share:.0%} {line.phase}, {line.function}(): {line.call or line.kind}"
            colour = COLOURS.get(line.phase, COMPUTE)
            bars.append(Bar(line.place[-20:], line.share, text[:64], colour))
    return bars
