"""The lanes of a loader: what each worker did, under the loop that it feeds."""

from __future__ import annotations

import numpy as np

from labkit.results.workers import MAIN, LoaderWorkers
from labkit.view.style import (
    BLUE,
    COMPUTE,
    SKY,
    WAIT,
    Picture,
    draw_lanes,
    legend_above,
    our_style,
    page,
)

COLOURS = {"the loop waits": WAIT, "loop body": COMPUTE, "fetches items": BLUE, "collates": SKY}
LANE_IN = 0.26
AROUND_IN = 0.8
MOST_LANES = 16  # of workers
SHOWN_S = 3.0


@our_style
def draw_workers(workers: LoaderWorkers) -> Picture:
    """Draw a few seconds of the loop and of each worker, in the middle of what was recorded."""
    batches = workers.batches
    if not len(batches):
        return page("Nothing to draw: nothing was recorded of the loader's workers.")[0]
    start_s = (batches.start.min() + batches.ready.max() - SHOWN_S) / 2
    asked, ready, _, done = (workers.run.host_ns - workers.run.host_ns[0, 0]).T / 1e9
    spans = np.column_stack([asked, ready]), np.column_stack([ready, done])
    lanes = {"the loop": dict(zip(COLOURS, spans, strict=False))}
    for number, own in list(batches.groupby("worker"))[:MOST_LANES]:
        lanes["main process" if number == MAIN else f"worker {number}"] = {
            "fetches items": own[["start", "fetched"]].to_numpy(),
            "collates": own[["fetched", "ready"]].to_numpy(),
        }
    share = workers.rows.mean().cpu_share
    title = f"Inside the loader: CPU time is {share:.0%} of the time to prepare a batch"
    figure, [axes] = page(title, [], [AROUND_IN + LANE_IN * len(lanes)])
    draw_lanes(axes, lanes, COLOURS, start_s, start_s + SHOWN_S)
    axes.set_xlabel("seconds since the first batch was asked for")
    legend_above(axes)
    return figure
