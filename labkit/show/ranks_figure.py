"""The figure of a distributed run: a lane of time for each rank, and its shares below."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from labkit.results.ranks import RankRun, Ranks
from labkit.show.display import RANKS_PX
from labkit.show.primitives import name_rows, rows_in, stack
from labkit.show.run_figure import share_text
from labkit.show.run_header import LOUD, doubts, said, several_header
from labkit.show.style import COMPUTE, OTHER, WAIT, legend_above, our_style, page, room_in

TEETH = 6  # steps in the window
EXCHANGE, OTHERS = "#0072B2", "#56B4E9"
PARTS = {  # part of RankTimes: (name, colour), as stacked
    "wait": ("waiting for data", WAIT),
    "compute": ("compute", COMPUTE),
    "others": ("waiting for another rank", OTHERS),
    "transfer": ("exchanging gradients", EXCHANGE),
    "other": ("other", OTHER),
}


@our_style
def draw(ranks: Ranks) -> Figure:
    """Draw `ranks`; a run too short for numbers gets a figure that says so."""
    times, count = ranks.times, f"{ranks.world_size} rank{'s' * (ranks.world_size > 1)}"
    knobs = said(ranks.asked.changed() | ({"no_sync": True} if ranks.no_sync else {}))[:240]
    if times is None:
        why = ranks.error or f"{ranks.outcome} after {ranks.steps} steps: too few to measure"
        lines = several_header(f"{count}, no numbers", [knobs], [ranks])
        return page([*lines, (why, LOUD)], [])[0]
    title = f"{count}: {ranks.throughput:,.0f} samples/s together, {ranks.diagnose().headline}"
    header = [*several_header(title, [_delays(ranks), knobs], [ranks]), *doubts(ranks)]
    spaces = (0.32, 0.62)
    tall = max(rows_in(len(times.ranks)), (room_in(RANKS_PX, header) - sum(spaces)) / 2)
    figure, (lanes, shares) = page(header, [(space, tall) for space in spaces])
    _draw_lanes(lanes, [rank for rank in ranks if rank.steps])
    parts = {part: np.asarray(getattr(times, part)) for part in PARTS}
    rows = [
        (f"rank {rank}", {part: each[row] for part, each in parts.items()}, "")
        for row, rank in enumerate(times.ranks)
    ]
    stack(shares, rows, PARTS, "share of wall time, warm-up left out", inside=share_text)
    shares.get_legend().remove()  # the lanes have it
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
    count, first = min(run.steps for run in runs), max(run.warmup for run in runs)
    start = min(max(first, count // 2 - TEETH // 2), max(0, count - TEETH))
    zero = min(run.steps_since(start)[0]["t"][0] for run in runs)
    for row, run in enumerate(runs):
        for colour, spans in _lane(run, runs, start, start + TEETH).items():
            shifted = [((a - zero) / 1e6, (b - a) / 1e6) for a, b in spans if b > a]
            axes.broken_barh(shifted, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
    name_rows(axes, [f"rank {run.rank}" for run in runs])
    axes.set_xlim(left=0)
    axes.set_xlabel("ms, on one clock; steps in the middle of the run", labelpad=1)
    legend_above(axes, [Patch(color=colour, label=name) for name, colour in PARTS.values()])


def _lane(run: RankRun, runs: list[RankRun], start: int, stop: int) -> dict[str, list]:
    """Return {colour: [(start, end) ns]} of the steps from `start` to `stop`, of one rank."""
    spans: dict[str, list] = {WAIT: [], COMPUTE: [], OTHERS: [], EXCHANGE: []}
    exchange = [each.exchange_ns[start:stop] for each in runs]
    for step, own, *all_of in zip(
        run.steps_since(start)[: stop - start], run.exchange_ns[start:stop], *exchange, strict=False
    ):
        asked, ready, copied, done = step["t"]
        begin, end = step.get("busy", (copied, done))
        spans[WAIT].append((asked, min(ready, begin)))
        if np.isnan(own).any():
            spans[COMPUTE].append((begin, end))
            continue
        last = min(max(np.nanmax([each[0] for each in all_of]), own[0]), own[1])
        spans[COMPUTE] += [(begin, own[0]), (own[1], end)]
        spans[OTHERS].append((own[0], last))
        spans[EXCHANGE].append((last, own[1]))
    return spans
