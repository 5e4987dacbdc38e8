"""What the items of a run cost to prepare, batch by batch, as predictions need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.results.columns import Columns
from labkit.results.event_shapes import MOST
from labkit.results.run_log import RunLog

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
NUMBERS = 10  # of a row of the bench's item timer, a batch each; then two lists, of the items


@dataclass(frozen=True)
class ItemCosts(Columns):
    """Per prepared batch, in the order of their start; times in s, one entry a batch."""

    number: np.ndarray  # which batch of its loader process it was, from 0
    cpu: np.ndarray  # CPU time of fetching its samples
    wait: np.ndarray  # time of fetching in which the process wanted no core: it read or slept
    collate_cpu: np.ndarray  # as `cpu` and `wait`, of the collate step
    collate_wait: np.ndarray
    between: np.ndarray  # CPU time of the process, all threads, since the batch before
    item_cpu: np.ndarray  # arrays: as `cpu`, of single samples; empty where not timed singly
    item_wait: np.ndarray


def item_costs(run: RunLog) -> ItemCosts | None:
    """Read what `run` measured of its items; None where it measured nothing (an older record)."""
    rows = [row for event in run.item_events for row in event["rows"] if _is_sound(row)]
    if not rows:
        return None
    rows.sort(key=lambda row: row[1])
    columns = np.array([row[:NUMBERS] for row in rows], dtype=float).T
    number, start, _samples = columns[:3]
    cpu, wait, line, collate_cpu, collate_wait, collate_line, between = columns[3:] / 1e6
    return ItemCosts(
        number=number.astype(int),
        start=run.seconds(start),
        cpu=cpu,
        wait=np.maximum(0.0, wait - LINE_MISSED * line),
        collate_cpu=collate_cpu,
        collate_wait=np.maximum(0.0, collate_wait - LINE_MISSED * collate_line),
        between=between,
        item_cpu=_arrays(row[-2] for row in rows),
        item_wait=_arrays(row[-1] for row in rows),
    )


def _arrays(times_us: Iterable[list[float]]) -> np.ndarray:
    """Return an array of arrays, s."""
    return np.fromiter((np.array(times) / 1e6 for times in times_us), dtype=object)


def _is_sound(row: object) -> bool:
    """Return whether a row of the item timer has the numbers that it should have."""
    match row:
        case [*numbers, list(cpus), list(waits)]:
            is_whole = len(numbers) == NUMBERS and len(cpus) == len(waits)
            return is_whole and all(map(_is_time, [*numbers, *cpus, *waits]))
    return False


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < MOST
