"""The lanes of a loader: what each worker did, under the loop that it feeds."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.results.workers import MAIN, Batches, LoaderWorkers
from labkit.view.style import COMPUTE, WAIT, legend_above, our_style, page

FETCH, COLLATE, HELD = "#0072B2", "#56B4E9", "#DDDDDD"
LANE_IN, SPACE_IN = 0.26, 0.36
BAR = 0.72  # of a lane's height
MOST_LANES = 16  # of workers
LATEST = 0.5  # of the run: the window begins at the latest there, behind the start of the workers


@our_style
def draw(workers: LoaderWorkers, start_s: float | None = None, seconds: float = 3.0) -> Figure:
    """Draw `seconds` of the loop and of each worker, from `start_s` of the run's clock on."""
    batches = workers.batches
    if not len(batches):
        why = "Nothing to draw: nothing was recorded of the loader's workers."
        return page([(why, {})], [])[0]
    begin = _first_moment(workers, seconds) if start_s is None else start_s
    numbers = [each.worker for each in workers][:MOST_LANES]
    title = [(_title(workers), {"fontweight": "bold"})]
    figure, (axes,) = page(title, [(SPACE_IN, LANE_IN * (len(numbers) + 1))])
    _draw_loop(axes, workers, len(numbers), begin, seconds)
    for row, number in enumerate(numbers):
        _draw_worker(axes, batches, number, len(numbers) - 1 - row)
    names = ["main process" if number == MAIN else f"worker {number}" for number in numbers]
    axes.set_yticks(range(len(names) + 1), [*reversed(names), "the loop"])
    axes.set_ylim(-0.5, len(names) + 0.5)
    axes.set_xlim(begin, begin + seconds)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds since the first batch was asked for")
    handles = [
        Patch(color=WAIT, label="the loop waits"),
        Patch(color=COMPUTE, label="loop body"),
        Patch(color=FETCH, label="fetches items"),
        Patch(color=COLLATE, label="collates"),
        Patch(color=HELD, label="its batches wait to be taken"),
    ]
    legend_above(axes, handles)
    return figure


def _title(workers: LoaderWorkers) -> str:
    text = f"Inside the loader: CPU time is {workers.cpu_share:.0%} of the time to prepare a batch"
    if workers[0].worker == MAIN:
        return text
    return f"{text}; workers are idle for {workers.idle_share:.0%}"


def _first_moment(workers: LoaderWorkers, seconds: float) -> float:
    """Return where a window begins by default: within the batches that all workers have rows of."""
    batches = workers.batches
    last = float(np.max(batches.ready))
    first = float(np.min(batches.start))
    return max(first, min(first + LATEST * (last - first), last - seconds))


def _draw_loop(axes: Axes, workers: LoaderWorkers, lane: int, begin: float, seconds: float) -> None:
    host_ns = workers.run.host_ns
    host_s = (host_ns - host_ns[0, 0]) / 1e9
    inside = (host_s[:, 3] >= begin) & (host_s[:, 0] <= begin + seconds)
    asked, ready, _, done = host_s[inside].T
    _bars(axes, lane, asked, ready, WAIT)
    _bars(axes, lane, ready, done, COMPUTE)


def _draw_worker(axes: Axes, batches: Batches, number: int, lane: int) -> None:
    own = batches.worker == number
    start, fetched, ready, taken = (
        times[own] for times in (batches.start, batches.fetched, batches.ready, batches.taken)
    )
    if number != MAIN and len(start):
        held_until = np.fmax.accumulate(np.where(np.isnan(taken), ready, taken))
        until_next = np.append(start[1:], held_until[-1])
        _bars(axes, lane, ready, np.clip(held_until, ready, np.maximum(until_next, ready)), HELD)
    _bars(axes, lane, start, fetched, FETCH)
    _bars(axes, lane, fetched, ready, COLLATE)


def _bars(axes: Axes, lane: int, begin: np.ndarray, end: np.ndarray, colour: str) -> None:
    spans = list(zip(begin, end - begin, strict=True))
    axes.broken_barh(spans, (lane - BAR / 2, BAR), facecolors=colour)
