"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.ranks import RanksData
from labkit.results.sweep import SweptRuns
from labkit.text import counted
from labkit.view.rows_figure import draw_rows, height_of, notes_of, tidied
from labkit.view.style import BLUE, COMPUTE, OTHER, SKY, WAIT, our_style, page, stack

RATE, BUSY = "samples/s", "device busy, %"
AROUND_IN, RANK_IN = 1.0, 0.35  # inches
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

    Numbers are drawn to scale, names have bars: see `lk.plot`. A run without numbers is a gap; a
    note says why.
    """
    knob, *others = sweep.knobs
    rows = sweep.frame.astype(dict.fromkeys(["throughput", "utilization"], float))
    rows["setting"] = [as_typed({name: each[name] for name in others}) for each in sweep.settings]
    columns = {
        y: tidied(rows.assign(**{y: values}), knob, y, "setting" if others else None)
        for y, values in {RATE: rows["throughput"], BUSY: 100 * rows["utilization"]}.items()
    }
    rates = rows["throughput"]
    title = f"sweep of {', '.join(sweep.knobs)}"
    if rates.count() > 1:
        best = as_typed(sweep.settings[int(rates.argmax())])
        title = f"{best}: {rates.max() / rates.min():.1f}x the throughput of the slowest setting"
    notes = [*notes_of(columns[RATE], "numbers"), *map(repr, sweep.runs[:1])]
    figure, places = page(title, notes, [*map(height_of, columns.values())])
    for axes, (y, drawn) in zip(places, columns.items(), strict=True):
        draw_rows(axes, drawn, knob, y)
    return figure


@our_style
def draw_ranks(ranks: RanksData, bottleneck: str) -> Figure:
    """Draw `ranks`, and name the `bottleneck`; a run without numbers has a figure that says why."""
    times = ranks.times
    notes = [repr(ranks), ranks.machine.line]
    count = counted(ranks.world_size, "rank")
    if times is None:
        return page(f"{count}, no numbers", notes)[0]
    title = f"{count}: {ranks.throughput:,.0f} samples/s together; bottleneck: {bottleneck}"
    figure, [axes] = page(title, notes, [AROUND_IN + RANK_IN * len(times.ranks)])
    shares = {label: getattr(times, part) for part, (label, _) in RANK_PARTS.items()}
    names = [f"rank {rank}" for rank in times.ranks]
    stack(axes, pandas.DataFrame(shares, names), [colour for _, colour in RANK_PARTS.values()])
    axes.set(xlabel="share of wall time, warm-up left out", xlim=(0, 1))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    return figure
