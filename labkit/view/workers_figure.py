"""The lanes of a loader: what each worker did, under the loop that it feeds."""

from __future__ import annotations

import numpy as np
import pandas

from labkit.results.workers import MAIN, LoaderWorkers
from labkit.view.primitives import Lane, draw_lanes, patches
from labkit.view.style import (
    BLUE,
    BOLD,
    COMPUTE,
    LOUD,
    SKY,
    WAIT,
    Picture,
    legend_above,
    our_style,
    page,
)

LEGEND = (
    ("the loop waits", WAIT),
    ("loop body", COMPUTE),
    ("fetches items", BLUE),
    ("collates", SKY),
)
LANE_IN = 0.26
AROUND_IN = 0.8
MOST_LANES = 16  # of workers
SHOWN_S = 3.0


@our_style
def draw_workers(workers: LoaderWorkers) -> Picture:
    """Draw a few seconds of the loop and of each worker, in the middle of what was recorded."""
    batches = workers.batches
    if not len(batches):
        why = "Nothing to draw: nothing was recorded of the loader's workers."
        return page([(why, LOUD)])[0]
    start_s = (batches.start.min() + batches.ready.max() - SHOWN_S) / 2
    numbers = list(workers.rows.index)[:MOST_LANES]
    lanes = [_worker_lane(batches, number) for number in reversed(numbers)]
    asked, ready, _, done = (workers.run.host_ns - workers.run.host_ns[0, 0]).T / 1e9
    body = (COMPUTE, np.column_stack([ready, done]))
    lanes.append(Lane("the loop", [(WAIT, np.column_stack([asked, ready])), body]))
    shares = workers.rows.mean()
    title = f"Inside the loader: CPU time is {shares.cpu_share:.0%} of the time to prepare a batch"
    if numbers[0] != MAIN:
        title += f"; workers are idle for {shares.idle_share:.0%}"
    figure, [axes] = page([(title, BOLD)], [AROUND_IN + LANE_IN * len(lanes)])
    draw_lanes(axes, lanes, start_s, start_s + SHOWN_S)
    axes.set_xlabel("seconds since the first batch was asked for")
    legend_above(axes, patches(LEGEND))
    return figure


def _worker_lane(batches: pandas.DataFrame, number: int) -> Lane:
    own = batches.worker == number
    fetched = batches.fetched[own]
    fetching = np.column_stack([batches.start[own], fetched])
    collating = np.column_stack([fetched, batches.ready[own]])
    spans = [(BLUE, fetching), (SKY, collating)]
    return Lane("main process" if number == MAIN else f"worker {number}", spans)
