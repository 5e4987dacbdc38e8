"""Runs of several machines in one figure: what each one's step is made of, in shares of it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from labkit.results.run import Run
from labkit.show.run_header import device_of, knobs_of, several_header
from labkit.show.step_parts import step_parts
from labkit.show.style import PARTS, drawable, legend_above, literal, ms, our_style, page, percent

BAR_IN = 0.62
LABELLED = 0.06  # a share at least this wide has its percentage written in


def beside(*runs: Run) -> Figure:
    """Draw runs of different machines, live or recorded, one bar each: shares of the mean step.

    Machines differ by orders of magnitude in ms, so the bars are shares; the ms stand at the end.
    Raises ValueError where a run has no numbers, or none is given.
    """
    if not runs:
        raise ValueError("beside(): give at least one run.")
    for run in runs:
        if not isinstance(run, Run) or run.utilization is None:
            raise ValueError(f"beside(): there are no steps to draw in {run!r}.")
    return _draw(runs)


@our_style
def _draw(runs: Sequence[Run]) -> Figure:
    header = several_header("The mean step on each machine, in shares of it", [], runs)
    figure, (axes,) = page(header, [(0.32, BAR_IN * len(runs))], left_in=2.6)
    for row, run in enumerate(runs):
        _bar(axes, row, run)
    axes.set_yticks(range(len(runs)), [_name(run) for run in runs])
    for label in axes.get_yticklabels():
        literal(label)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of the mean step (warm-up left out)")
    legend_above(axes, [Patch(facecolor=colour, label=name) for name, colour in PARTS.values()])
    return figure


def _bar(axes: Axes, row: int, run: Run) -> None:
    parts = step_parts(run)
    total, left = sum(parts.values()), 0.0
    for part, value in parts.items():
        share = value / total
        axes.barh(row, share, left=left, height=0.5, color=PARTS[part][1], linewidth=0)
        if share >= LABELLED:
            axes.text(
                left + share / 2, row, percent(share), ha="center", va="center",
                color="white" if part == "copy" else "black",
            )  # fmt: skip
        left += share
    axes.annotate(
        f"{ms(total)} ms\n{run.throughput:,.0f}/s", (1, row), (5, 0), textcoords="offset points",
        va="center", annotation_clip=False,
    )  # fmt: skip


def _name(run: Run) -> str:
    mark = "RECORDED: " if run.recorded else "here: "
    name = drawable(run.machine.name, 30)
    busy = f"{device_of(run)} busy {run.busy_text}"
    return f"{mark}{name}\n{drawable(knobs_of(run), 36)}\n{busy}"
