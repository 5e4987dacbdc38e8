"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from labkit.knobs import as_typed
from labkit.results.ranks import RankRun, Ranks
from labkit.results.run_text import delays_of
from labkit.results.sweep import Sweep
from labkit.results.text import counted
from labkit.view.display import RANKS_PX
from labkit.view.marks import bars_in, draw_legend, draw_series, is_lines, legend_in
from labkit.view.primitives import Lane, draw_lanes, patches, rows_in, stack
from labkit.view.rows_figure import HOLLOW
from labkit.view.run_header import (
    KNOBS_LENGTH,
    device_of,
    doubts,
    several_header,
    shortened,
)
from labkit.view.series import Series, SeriesMaker
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
    room_in,
    whole_percent,
)

RATE = "samples_per_s"
MOST_SHOWN = 10  # points of one line that still have room for their numbers
WINDOW_STEPS = 6  # steps in the window
RANK_PARTS = {  # part of RankTimes: (name, colour), as stacked
    "wait": ("waiting for data", WAIT),
    "compute": ("compute", COMPUTE),
    "others": ("waiting for another rank", SKY),
    "transfer": ("exchanging gradients", BLUE),
    "other": ("other", OTHER),
}


@our_style
def draw_sweep(sweep: Sweep) -> Figure:
    """Draw throughput and utilization against the sweep's first knob, a line per other combination.

    Numbers are drawn to scale, names have bars: see `lk.plot`. The error bars of the throughput are
    the run's own unevenness (`Run.spread`). A run without numbers is a gap; the header says why.
    """
    knob, *others = sweep.knobs
    device = device_of(sweep.runs[0]) if sweep.runs else "device"
    bound = ", at most" if any(run.utilization_is_upper_bound for run in sweep.runs) else ""
    busy = f"{device} busy{bound}, %"
    rows = rows_of(sweep, busy)
    by = "setting" if others else None
    rates, shares = (SeriesMaker(knob, column, by).own(rows) for column in (RATE, busy))
    fixed = {name: v for name, v in sweep.pipeline.changed().items() if name not in sweep.knobs}
    hollow = HOLLOW if any(run.noisy for run in sweep.runs) else ""
    texts = [_left_out(sweep), delays_of(sweep.runs, sweep.knobs), as_typed(fixed), hollow]
    legend = legend_in(rates)
    panels = [(0.14 + legend, 1.8), (0.22, 1.3)]
    if not is_lines(rates):
        panels = [(0.14 + legend, bars_in(rates)), (0.55, bars_in(rates))]
    figure, (above, below) = page(several_header(_message(sweep), texts, sweep.runs), panels)
    draw_series(above, rates, knob, RATE, None)
    draw_series(below, shares, knob, busy, None)
    draw_legend(above)
    if is_lines(rates):
        below.set(ylim=(0, 105), yticks=[0, 25, 50, 75, 100])
        above.set_xlabel("")
        above.tick_params(labelbottom=False)
        _write_values(above, rates)
        _write_values(below, shares)
    return figure


def rows_of(sweep: Sweep, busy: str) -> pandas.DataFrame:
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


def _write_values(axes: Axes, series: Sequence[Series]) -> None:
    """Write the numbers over the points of a single line."""
    if len(series) > 1 or len(series[0].values) > MOST_SHOWN:
        return
    axes.set_ylim(top=1.17 * axes.get_ylim()[1])
    look = {"ha": "center", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
    for place, value in zip(np.asarray(series[0].places), series[0].values, strict=True):
        if not np.isnan(value):
            text = f"{value:,.0f}"
            axes.annotate(text, (place, value), (0, 6), textcoords="offset points", **look)


def _message(sweep: Sweep) -> str:
    """Return the title: the best setting, and what it brings over the slowest."""
    rates = [run.throughput for run in sweep.runs if run.throughput]
    best = sweep.best
    if best is None or len(rates) < 2:
        return f"sweep of {', '.join(sweep.knobs)}"
    setting = sweep.settings[sweep.runs.index(best)]
    gain = max(rates) / min(rates)
    return f"{as_typed(setting)}: {gain:.1f}x the throughput of the slowest setting"


def _left_out(sweep: Sweep) -> str:
    """Say how many runs are missing, and why the first one has no numbers."""
    missing = len(sweep.settings) - len(sweep.runs)
    notes = [f"{missing} not run"] if missing else []
    for setting, run in zip(sweep.settings, sweep.runs, strict=False):
        if run.throughput is None:
            why = run.error or run.outcome
            return "; ".join([*notes, f"no numbers: {as_typed(setting)}: {why}"])
    return "; ".join(notes)


@our_style
def draw_ranks(ranks: Ranks) -> Figure:
    """Draw `ranks`; a run too short for numbers gets a figure that says so."""
    times = ranks.times
    count = counted(ranks.world_size, "rank")
    no_sync = {"no_sync": True} if ranks.no_sync else {}
    knobs = shortened(ranks.asked.changed() | no_sync, KNOBS_LENGTH)
    if times is None:
        why = ranks.error or f"{ranks.outcome} after {ranks.steps} steps: too few to measure"
        lines = several_header(f"{count}, no numbers", [knobs], [ranks])
        return page([*lines, (why, LOUD)], [])[0]
    rate = f"{ranks.throughput:,.0f} samples/s together"
    title = f"{count}: {rate}; bottleneck: {ranks.diagnose().headline}"
    header = [*several_header(title, [_delays(ranks), knobs], [ranks]), *doubts(ranks)]
    spaces = (0.32, 0.62)
    tall = max(rows_in(len(times.ranks)), (room_in(RANKS_PX, header) - sum(spaces)) / 2)
    figure, (lanes, shares) = page(header, [(space, tall) for space in spaces])
    _draw_lanes(lanes, [rank for rank in ranks if rank.steps])
    rows = {}
    for row, rank in enumerate(times.ranks):
        values = {part: float(getattr(times, part)[row]) for part in RANK_PARTS}
        rows[f"rank {rank}"] = values
    stack(shares, rows, RANK_PARTS, whole_percent)
    shares.set_xlabel("share of wall time, warm-up left out")
    shares.set_xlim(0, 1)
    shares.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _delays(ranks: Ranks) -> str:
    """Return the simulated delays, and which ranks were given another loader."""
    each = [] if 0 in ranks.starve else [ranks.pipeline.simulated_delay]
    each += [f"rank {rank}: {as_typed(knobs)}" for rank, knobs in ranks.starve.items()]
    text = "; ".join(filter(None, each))
    return f"simulated delay: {text}" if text else ""


def _draw_lanes(axes: Axes, runs: list[RankRun]) -> None:
    """Draw the true intervals of a few steps in the middle of the run."""
    count = min(run.steps for run in runs)
    first = max(run.warmup for run in runs)
    start = min(max(first, count // 2 - WINDOW_STEPS // 2), max(0, count - WINDOW_STEPS))
    steps = slice(start, min(start + WINDOW_STEPS, count))
    zero_ns = min(run.host_ns[start, 0] for run in runs)
    # when the last rank had its gradients; NaN where they were not exchanged
    complete_ns = np.max([run.exchange_ns[steps, 0] for run in runs], axis=0)
    lanes = []
    for run in reversed(runs):
        spans = []
        for colour, *span_ns in _rank_spans(run, steps, complete_ns):
            spans.append((colour, (np.column_stack(span_ns) - zero_ns) / 1e6))
        lanes.append(Lane(f"rank {run.rank}", spans))
    end_ns = max(run.stamps_ns(steps)[-1, -1] for run in runs)
    draw_lanes(axes, lanes, 0, (end_ns - zero_ns) / 1e6)
    axes.set_xlabel("ms, on one clock; steps in the middle of the run", labelpad=1)
    legend_above(axes, patches(RANK_PARTS.values()))


def _rank_spans(
    run: RankRun, steps: slice, complete: np.ndarray
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return what one rank did in some steps: colour, starts (n,) and ends (n,), ns.

    Those of an exchange are NaN in a step without one, which computes to its end.
    """
    asked, ready, _, _, begin, end = run.stamps_ns(steps).T
    own, averaged = np.where(np.isnan(complete), np.nan, run.exchange_ns[steps].T)
    last = np.minimum(complete, averaged)
    return [
        (WAIT, asked, np.maximum(asked, np.minimum(ready, begin))),
        (COMPUTE, begin, np.where(np.isnan(own), end, own)),
        (COMPUTE, averaged, end),
        (SKY, own, last),
        (BLUE, last, averaged),
    ]
