"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.ranks import RanksData, delays_of
from labkit.results.sweep import SweptRuns
from labkit.text import counted
from labkit.view.rows_figure import AROUND_IN, notes_of, rows_page, tidied
from labkit.view.run_figure import doubts, header_of
from labkit.view.style import (
    BLUE,
    COMPUTE,
    LOUD,
    OTHER,
    SKY,
    WAIT,
    our_style,
    page,
    stack,
)

RATE = "samples_per_s"
RANK_IN = 0.35
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
    bound = any(run.utilization_is_upper_bound for run in sweep.runs)
    rows = rows_of(sweep).rename(columns={"busy": (busy := f"device busy{', at most' * bound}, %")})
    by = "setting" if others else None
    drawn = {column: tidied(rows, knob, column, by) for column in (RATE, busy)}
    fixed = {name: v for name, v in sweep.pipeline.changed().items() if name not in sweep.knobs}
    texts = [delays_of(sweep.runs), as_typed(fixed), *notes_of(drawn[RATE], "numbers")]
    title = f"sweep of {', '.join(sweep.knobs)}"
    rates = drawn[RATE]["y"]
    if rates.count() > 1:
        best = as_typed(sweep.settings[int(rates.argmax())])
        title = f"{best}: {rates.max() / rates.min():.1f}x the throughput of the slowest setting"
    return rows_page(header_of(title, texts, sweep.runs), knob, drawn)


def rows_of(sweep: SweptRuns) -> pandas.DataFrame:
    """Return a row for each combination of a sweep's knobs, without numbers where none ran."""
    first, *others = sweep.knobs
    measured = [
        {
            RATE: run.throughput,
            f"iqr_{RATE}": (run.throughput or 0.0) * (run.spread or 0.0),
            "busy": None if run.utilization is None else 100 * run.utilization,
            "noisy": run.noisy,
            "error": None if run.throughput else run.error or run.outcome,
        }
        for run in sweep.runs
    ]
    asked = pandas.DataFrame(sweep.settings)
    asked["setting"] = [as_typed({name: each[name] for name in others}) for each in sweep.settings]
    if None in sweep.knobs[first]:  # makes names of all of them
        asked[first] = [str(setting[first]) for setting in sweep.settings]
    return asked.join(
        pandas.DataFrame(measured, columns=[RATE, f"iqr_{RATE}", "busy", "noisy", "error"])
    )


@our_style
def draw_ranks(ranks: RanksData, bottleneck: str) -> Figure:
    """Draw `ranks`, and name the `bottleneck`; a run without numbers has a figure that says why."""
    times, first = ranks.times, ranks.first
    count = counted(ranks.world_size, "rank")
    knobs = as_typed(ranks.asked.changed())
    starved = [f"rank {rank}: {as_typed(knobs)}" for rank, knobs in ranks.starve.items()]
    if times is None or first is None:
        why = ranks.error or f"{ranks.outcome} after {ranks.steps} steps: too few to measure"
        return page([*header_of(f"{count}, no numbers", [knobs], [ranks]), (why, LOUD)])[0]
    title = f"{count}: {ranks.throughput:,.0f} samples/s together; bottleneck: {bottleneck}"
    header = [*header_of(title, [delays_of([ranks]), *starved, knobs], [ranks]), *doubts(first)]
    figure, [shares] = page(header, [AROUND_IN + RANK_IN * len(times.ranks)])
    rows = {}
    for row, rank in enumerate(times.ranks):
        rows[f"rank {rank}"] = {part: getattr(times, part)[row] for part in RANK_PARTS}
    stack(shares, rows, RANK_PARTS)
    shares.set(xlabel="share of wall time, warm-up left out", xlim=(0, 1))
    shares.xaxis.set_major_formatter(PercentFormatter(1))
    return figure
