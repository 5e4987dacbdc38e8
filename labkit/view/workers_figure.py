"""The lanes of a loader: what each worker did, under the loop that it feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from labkit.results.workers import MAIN, LoaderWorkers
from labkit.view.primitives import Lane, draw_lanes, patches
from labkit.view.style import BLUE, BOLD, COMPUTE, PLAIN, SKY, WAIT, legend_above, our_style, page

if TYPE_CHECKING:
    import pandas

HELD = "#DDDDDD"
LEGEND = (
    ("the loop waits", WAIT),
    ("loop body", COMPUTE),
    ("fetches items", BLUE),
    ("collates", SKY),
    ("its batches wait to be taken", HELD),
)
LANE_IN = 0.26
SPACE_IN = 0.36
MOST_LANES = 16  # of workers
LATEST = 0.5  # of the run, after the start of the workers: the window begins no later


@our_style
def draw_workers(workers: LoaderWorkers, start_s: float | None, seconds: float) -> Figure:
    """Draw `seconds` of the loop and of each worker, from `start_s` of the run's clock on."""
    batches = workers.batches
    if not len(batches):
        why = "Nothing to draw: nothing was recorded of the loader's workers."
        return page([(why, PLAIN)], [])[0]
    if start_s is None:  # where most workers have begun, and all of it was recorded
        first = float(np.min(batches.start))
        last = float(np.max(batches.ready))
        start_s = max(first, min(first + LATEST * (last - first), last - seconds))
    numbers = [each.worker for each in workers][:MOST_LANES]
    lanes = [_worker_lane(batches, number) for number in reversed(numbers)]
    lanes.append(_loop_lane(workers))
    figure, (axes,) = page([(_title(workers), BOLD)], [(SPACE_IN, LANE_IN * len(lanes))])
    draw_lanes(axes, lanes, start_s, start_s + seconds)
    axes.set_xlabel("seconds since the first batch was asked for")
    legend_above(axes, patches(LEGEND))
    return figure


def _title(workers: LoaderWorkers) -> str:
    text = f"Inside the loader: CPU time is {workers.cpu_share:.0%} of the time to prepare a batch"
    if workers[0].worker == MAIN:
        return text
    return f"{text}; workers are idle for {workers.idle_share:.0%}"


def _loop_lane(workers: LoaderWorkers) -> Lane:
    host_ns = workers.run.host_ns
    asked, ready, _, done = (host_ns - host_ns[0, 0]).T / 1e9
    waits = np.column_stack([asked, ready])
    return Lane("the loop", [(WAIT, waits), (COMPUTE, np.column_stack([ready, done]))])


def _worker_lane(batches: pandas.DataFrame, number: int) -> Lane:
    own = batches.loc[batches.worker == number, ["start", "fetched", "ready", "taken"]]
    start, fetched, ready, taken = own.to_numpy().T
    spans = []
    if number != MAIN and len(start):
        held_until = np.fmax.accumulate(np.where(np.isnan(taken), ready, taken))
        until_next = np.append(start[1:], held_until[-1])
        held = np.clip(held_until, ready, np.maximum(until_next, ready))
        spans.append((HELD, np.column_stack([ready, held])))
    spans.append((BLUE, np.column_stack([start, fetched])))
    spans.append((SKY, np.column_stack([fetched, ready])))
    return Lane("main process" if number == MAIN else f"worker {number}", spans)
