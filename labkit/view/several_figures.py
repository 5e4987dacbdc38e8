"""The figures of several runs: a sweep over a knob, and the ranks of a distributed run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator, PercentFormatter

from labkit.results.ranks import RankRun, Ranks
from labkit.results.run import Run
from labkit.results.sweep import Sweep
from labkit.view import style
from labkit.view.display import RANKS_PX
from labkit.view.primitives import Series, lines, name_rows, rows_in, stack
from labkit.view.run_figure import share_text
from labkit.view.run_header import LOUD, delays_of, device_of, doubts, said, several_header
from labkit.view.style import ALARM, COMPUTE, LINES, OTHER, WAIT, drawable, our_style, page

MARKERS = "osD^vPX"
SPAN = 20  # times as large as the smallest value is the largest: from there on, logarithmic
VALUES_SHOWN = 10  # points of one line that still have room for their numbers
TEETH = 6  # steps in the window
EXCHANGE = "#0072B2"
OTHERS = "#56B4E9"
PARTS = {  # part of RankTimes: (name, colour), as stacked
    "wait": ("waiting for data", WAIT),
    "compute": ("compute", COMPUTE),
    "others": ("waiting for another rank", OTHERS),
    "transfer": ("exchanging gradients", EXCHANGE),
    "other": ("other", OTHER),
}


@our_style
def draw_sweep(sweep: Sweep) -> Figure:
    """Draw throughput and utilization against the sweep's first knob, a line per other combination.

    Numbers stand to scale, those of several orders of magnitude to a logarithmic one, as does the
    throughput then; anything else is a category, and no line connects them. Bars through the
    throughput are the run's own unevenness (`Run.spread`). A run without numbers is a gap, marked.
    """
    knob, *others = sweep.knobs
    values = sweep.knobs[knob]
    found: dict[str, list[Run | None]] = {}  # a line's runs at each value, by its name
    for setting, run in itertools.zip_longest(sweep.settings, sweep.runs):
        line = found.setdefault(said({n: setting[n] for n in others}), [None] * len(values))
        line[values.index(setting[knob])] = run
    fixed = {n: v for n, v in sweep.pipeline.changed().items() if n not in sweep.knobs}
    texts = [_left_out(sweep), delays_of(sweep.runs, sweep.knobs), said(fixed)]
    legend_rows = -(-len(found) // style.legend_columns(list(found))) if others else 0
    panels = [(0.14 + style.LEGEND_ROW_IN * legend_rows, 1.8), (0.22, 1.3)]
    figure, (rates, busy) = page(several_header(_message(sweep), texts, sweep.runs), panels)
    numbers = all(type(value) in (int, float) for value in values)
    places = values if numbers else range(len(values))
    low, high = min(places), max(places)
    log = "x" if numbers and low > 0 and high > SPAN * low else ""
    margin = 0.06 * (high - low) if numbers else 0.5
    _draw(rates, found, places, "throughput", "samples/s", "{:,.0f}".format, log and "xy")
    device = device_of(sweep.runs[0]) if sweep.runs else "device"
    bound = ", at most" if any(run.utilization_is_upper_bound for run in sweep.runs) else ""
    _draw(busy, found, places, "utilization", f"{device} busy{bound}", "{:.0%}".format, log)
    busy.set_ylim(0, 1.22 if len(found) == 1 else 1.05)
    busy.set_yticks([0, 0.25, 0.5, 0.75, 1])
    busy.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (rates, busy):
        axes.set_xlim((low / 1.5, high * 1.5) if log else (low - margin, high + margin))
        axes.set_xticks(places, [drawable(str(value), 16) for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(labelbottom=axes is busy)
    busy.set_xlabel(knob)
    return figure


def _message(sweep: Sweep) -> str:
    """Return the title: the best setting, and what it brings over the slowest."""
    rates = [run.throughput for run in sweep.runs if run.throughput]
    best = sweep.best
    if best is None or len(rates) < 2:
        return f"sweep of {', '.join(sweep.knobs)}"
    setting = sweep.settings[sweep.runs.index(best)]
    gain = max(rates) / min(rates)
    return f"{said(setting)}: {gain:.1f}x the throughput of the slowest setting"


def _draw(
    axes: Axes,
    found: dict[str, list[Run | None]],
    places: Sequence[float],
    name: str,
    ylabel: str,
    say: Callable[[float], str],
    log: str,
) -> None:
    """Draw one number of the runs, with the spread of the throughput, and crosses for gaps."""
    series = []
    reach = []  # how high the bars of spread go
    for index, (label, line) in enumerate(found.items()):
        values = np.array([getattr(run, name) if run else None for run in line], float)
        colour = LINES[index % len(LINES)]
        dash = "-" if index < len(LINES) else "--"
        if isinstance(places, range):
            dash = ""  # nothing lies between two categories
        marker = MARKERS[index % len(MARKERS)]
        named = label if name == "throughput" else ""
        series.append(Series(named, places, values, colour, dash, marker))
        if name == "throughput":  # half the IQR to either side
            half = np.nan_to_num(values) * [(run.spread or 0) / 2 if run else 0 for run in line]
            axes.errorbar(places, values, half, fmt="none", ecolor=colour, capsize=3)
            reach += [*(np.nan_to_num(values) + half)]
        lost = zip(places, line, values, strict=True)
        gaps = [x for x, run, value in lost if run is not None and np.isnan(value)]
        if gaps:
            place = axes.get_xaxis_transform()
            axes.plot(gaps, [0.03] * len(gaps), "x", color=ALARM, markersize=7, transform=place)
    few = len(found) == 1 and len(places) <= VALUES_SHOWN
    lines(axes, series, ylabel, log, say if few else None)
    if reach and "y" not in log:
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.05 * max(reach)))


def _left_out(sweep: Sweep) -> str:
    """Say how many runs are missing, and why the first one has no numbers (the crosses)."""
    missing = len(sweep.settings) - len(sweep.runs)
    notes = [f"{missing} not run"] if missing else []
    for setting, run in zip(sweep.settings, sweep.runs, strict=False):
        if run.throughput is None:
            return "; ".join([*notes, f"× no numbers: {said(setting)}: {run.error or run.outcome}"])
    return "; ".join(notes)


@our_style
def draw_ranks(ranks: Ranks) -> Figure:
    """Draw `ranks`; a run too short for numbers gets a figure that says so."""
    times = ranks.times
    count = f"{ranks.world_size} rank{'s' * (ranks.world_size > 1)}"
    knobs = said(ranks.asked.changed() | ({"no_sync": True} if ranks.no_sync else {}))[:240]
    if times is None:
        why = ranks.error or f"{ranks.outcome} after {ranks.steps} steps: too few to measure"
        lines = several_header(f"{count}, no numbers", [knobs], [ranks])
        return page([*lines, (why, LOUD)], [])[0]
    title = f"{count}: {ranks.throughput:,.0f} samples/s together, {ranks.diagnose().headline}"
    header = [*several_header(title, [_delays(ranks), knobs], [ranks]), *doubts(ranks)]
    spaces = (0.32, 0.62)
    tall = max(rows_in(len(times.ranks)), (style.room_in(RANKS_PX, header) - sum(spaces)) / 2)
    figure, (lanes, shares) = page(header, [(space, tall) for space in spaces])
    _draw_lanes(lanes, [rank for rank in ranks if rank.steps])
    parts = {part: np.asarray(getattr(times, part)) for part in PARTS}
    rows = [
        (f"rank {rank}", {part: each[row] for part, each in parts.items()}, "")
        for row, rank in enumerate(times.ranks)
    ]
    stack(shares, rows, PARTS, "share of wall time, warm-up left out", inside=share_text)
    if legend := shares.get_legend():  # the lanes have it
        legend.remove()
    shares.set_xlim(0, 1)
    shares.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _delays(ranks: Ranks) -> str:
    """Return the simulated delays, and which ranks were given another loader."""
    each = [] if 0 in ranks.starve else [ranks.pipeline.simulated_delay]
    each += [f"rank {rank}: {said(knobs)}" for rank, knobs in ranks.starve.items()]
    text = "; ".join(filter(None, each))
    return f"simulated delay: {text}" if text else ""


def _draw_lanes(axes: Axes, runs: list[RankRun]) -> None:
    """Draw the true intervals of a few steps in the middle of the run."""
    count = min(run.steps for run in runs)
    first = max(run.warmup for run in runs)
    start = min(max(first, count // 2 - TEETH // 2), max(0, count - TEETH))
    stop = min(start + TEETH, count)
    zero = min(run.host_ns[start, 0] for run in runs)
    exchange = np.stack([run.exchange_ns[start:stop] for run in runs])  # (ranks, steps, 2)
    complete = exchange[:, :, 0].max(axis=0)  # when the last rank had its gradients; NaN: never
    for row, run in enumerate(runs):
        spans: dict[str, list] = {WAIT: [], COMPUTE: [], OTHERS: [], EXCHANGE: []}
        steps = run.steps_since(start, stop)
        for step, last, (own, averaged) in zip(steps, complete, exchange[row], strict=True):
            asked, ready, copied, done = step["t"]
            begin, end = step.get("busy", (copied, done))
            spans[WAIT].append((asked, min(ready, begin)))
            if np.isnan(last):
                spans[COMPUTE].append((begin, end))
                continue
            last = min(last, averaged)
            spans[COMPUTE] += [(begin, own), (averaged, end)]
            spans[OTHERS].append((own, last))
            spans[EXCHANGE].append((last, averaged))
        for colour, drawn in spans.items():
            shifted = [((a - zero) / 1e6, (b - a) / 1e6) for a, b in drawn if b > a]
            axes.broken_barh(shifted, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    name_rows(axes, [f"rank {run.rank}" for run in runs])
    axes.set_xlim(left=0)
    axes.set_xlabel("ms, on one clock; steps in the middle of the run", labelpad=1)
    style.legend_above(axes, [Patch(color=colour, label=name) for name, colour in PARTS.values()])
