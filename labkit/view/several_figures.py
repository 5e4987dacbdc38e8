"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import itertools

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.ranks import RanksData, delays_of
from labkit.results.sweep import SweptRuns
from labkit.text import counted
from labkit.view import FIGURE_PX
from labkit.view.primitives import patches, stack
from labkit.view.rows_figure import HOLLOW, draw_rows, height_in, is_lines, tidied
from labkit.view.run_header import KNOBS_LENGTH, device_of, doubts, header_of, shortened
from labkit.view.style import (
    BLUE,
    COMPUTE,
    LOUD,
    OTHER,
    SKY,
    WAIT,
    legend_above,
    our_style,
    page,
)

RATE = "samples_per_s"
ROW_IN = 0.35  # of a rank
RANK_PARTS = {  # part of RankTimes: (name, colour), as stacked
    "wait": ("waiting for data", WAIT),
    "compute": ("compute", COMPUTE),
    "others": ("waiting for another rank", SKY),
    "transfer": ("exchanging gradients", BLUE),
    "other": ("other", OTHER),
}


@our_style
def draw_sweep(sweep: SweptRuns) -> Figure:
    """Draw throughput and utilization against the sweep's first knob, a line per other combination.

    Numbers are drawn to scale, names have bars: see `lk.plot`. The error bars of the throughput are
    the run's own unevenness (`Run.spread`). A run without numbers is a gap; the header says why.
    """
    knob, *others = sweep.knobs
    device = device_of(sweep.runs[0]) if sweep.runs else "device"
    bound = ", at most" if any(run.utilization_is_upper_bound for run in sweep.runs) else ""
    busy = f"{device} busy{bound}, %"
    rows = rows_of(sweep, busy)
    fixed = {name: v for name, v in sweep.pipeline.changed().items() if name not in sweep.knobs}
    hollow = HOLLOW if any(run.noisy for run in sweep.runs) else ""
    texts = [_left_out(sweep), delays_of(sweep.runs), as_typed(fixed), hollow]
    by = "setting" if others else None
    drawn = {column: tidied(rows, knob, column, by) for column in (RATE, busy)}
    heights = list(map(height_in, drawn.values()))
    height_px = FIGURE_PX[False] if is_lines(drawn[RATE]) else 0
    header = header_of(_message(sweep), texts, sweep.runs)
    figure, axes = page(header, heights, height_px)
    for place, (column, each) in zip(axes, drawn.items(), strict=True):
        draw_rows(place, each, knob, column, None)
    if is_lines(drawn[busy]):
        axes[1].set(ylim=(0, 105), yticks=[0, 25, 50, 75, 100])
    legend_above(axes[0])
    return figure


def rows_of(sweep: SweptRuns, busy: str) -> pandas.DataFrame:
    """Return a row for each combination of a sweep's knobs, without numbers where none ran."""
    first, *others = sweep.knobs
    has_names = None in sweep.knobs[first]  # one None makes names of all of them
    rows = []
    for setting, run in itertools.zip_longest(sweep.settings, sweep.runs):
        rate = run.throughput if run else None
        share = run.utilization if run else None
        row = {
            first: str(setting[first]) if has_names else setting[first],
            "setting": as_typed({name: setting[name] for name in others}),
            RATE: rate,
            f"iqr_{RATE}": rate * (run.spread or 0.0) if run and rate else None,
            busy: 100 * share if share is not None else None,
            "noisy": run is not None and run.noisy,
        }
        rows.append(row)
    return pandas.DataFrame(rows)


def _message(sweep: SweptRuns) -> str:
    """Return the title: the best setting, and what it brings over the slowest."""
    rates = [run.throughput for run in sweep.runs if run.throughput]
    best = sweep.best
    if best is None or len(rates) < 2:
        return f"sweep of {', '.join(sweep.knobs)}"
    setting = sweep.settings[sweep.runs.index(best)]
    gain = max(rates) / min(rates)
    return f"{as_typed(setting)}: {gain:.1f}x the throughput of the slowest setting"


def _left_out(sweep: SweptRuns) -> str:
    """Say how many runs are missing, and why others have no numbers."""
    missing = len(sweep.settings) - len(sweep.runs)
    notes = [f"{missing} not run"] if missing else []
    for setting, run in zip(sweep.settings, sweep.runs, strict=False):
        if run.throughput is None:
            notes.append(f"no numbers: {as_typed(setting)}: {run.error or run.outcome}")
    return "; ".join(notes)


@our_style
def draw_ranks(ranks: RanksData, bottleneck: str) -> Figure:
    """Draw `ranks`, and name the `bottleneck`; a run without numbers has a figure that says why."""
    times = ranks.times
    count = counted(ranks.world_size, "rank")
    no_sync = {"no_sync": True} if ranks.no_sync else {}
    knobs = shortened(ranks.asked.changed() | no_sync, KNOBS_LENGTH)
    if times is None:
        why = ranks.error or f"{ranks.outcome} after {ranks.steps} steps: too few to measure"
        header = header_of(f"{count}, no numbers", [knobs], [ranks])
        return page([*header, (why, LOUD)], [])[0]
    rate = f"{ranks.throughput:,.0f} samples/s together"
    title = f"{count}: {rate}; bottleneck: {bottleneck}"
    starved = [f"rank {rank}: {as_typed(knobs)}" for rank, knobs in ranks.starve.items()]
    texts = [delays_of([ranks]), *starved, knobs]
    header = [*header_of(title, texts, [ranks]), *doubts(ranks)]
    figure, [shares] = page(header, [1 + ROW_IN * len(times.ranks)])
    rows = {}
    for row, rank in enumerate(times.ranks):
        rows[f"rank {rank}"] = {part: float(getattr(times, part)[row]) for part in RANK_PARTS}
    stack(shares, rows, {part: colour for part, (_, colour) in RANK_PARTS.items()})
    shares.set(xlabel="share of wall time, warm-up left out", xlim=(0, 1))
    legend_above(shares, patches(RANK_PARTS.values()))
    shares.xaxis.set_major_formatter(PercentFormatter(1))
    return figure
