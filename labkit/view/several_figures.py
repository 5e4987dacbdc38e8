"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.ranks import RanksData, delays_of
from labkit.results.sweep import SweptRuns
from labkit.text import counted
from labkit.view.rows_figure import plot
from labkit.view.style import BLUE, COMPUTE, OTHER, SKY, WAIT, our_style, page, stack

AROUND_IN, RANK_IN = 1.0, 0.35  # inches
RANK_PARTS = {  # part of RankTimes: (name, colour), as stacked
    "wait": ("waiting for data", WAIT),
    "compute": ("compute", COMPUTE),
    "others": ("waiting for another rank", SKY),
    "transfer": ("exchanging gradients", BLUE),
    "other": ("other", OTHER),
}


def draw_sweep(sweep: SweptRuns) -> Figure:
    """Draw throughput against the sweep's first knob, a line for each other combination.

    Numbers are drawn to scale, names have bars: see `lk.plot`. A run without numbers is a gap; a
    note says why.
    """
    knob, *others = sweep.knobs
    rows = sweep.frame.rename(columns={"throughput": "samples/s"})
    rows["setting"] = [as_typed({name: each[name] for name in others}) for each in sweep.settings]
    rates = rows["samples/s"].astype(float)
    title = f"sweep of {', '.join(sweep.knobs)}"
    if rates.count() > 1:
        best = as_typed(sweep.settings[int(rates.argmax())])
        title = f"{best}: {rates.max() / rates.min():.1f}x the throughput of the slowest setting"
    marks = dict.fromkeys(run.mark for run in sweep.runs)
    title = "; ".join(filter(None, [*marks, title, delays_of(sweep.runs)]))
    return plot(rows, knob, "samples/s", "setting" if others else None, title=title)


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
