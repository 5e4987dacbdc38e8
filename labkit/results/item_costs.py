"""What the items of a run cost to prepare, batch by batch, as predictions need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.results.event_shapes import MOST

if TYPE_CHECKING:
    from labkit.results.run_log import RunLog

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
NUMBERS = 10  # of a row of the bench's item timer, a batch each; then two lists, of the items


@dataclass(frozen=True)
class ItemCosts:
    """Per prepared batch, in the order of their start; times in s, one entry a batch."""

    number: np.ndarray  # which batch of its loader process it was, from 0
    start: np.ndarray  # when it began, on the run's clock
    cpu: np.ndarray  # CPU time of fetching its samples
    wait: np.ndarray  # time of fetching in which the process wanted no core: it read or slept
    collate_cpu: np.ndarray  # as `cpu` and `wait`, of the collate step
    collate_wait: np.ndarray
    between: np.ndarray  # CPU time of the process, all threads, since the batch before
    item_cpu: list[np.ndarray]  # as `cpu`, of single samples; empty where not timed singly
    item_wait: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> ItemCosts:
        """Return the batches where the mask `keep` is true."""
        rows = np.flatnonzero(keep)
        kept = []
        for column in vars(self).values():
            is_list = isinstance(column, list)
            kept.append([column[row] for row in rows] if is_list else column[rows])
        return ItemCosts(*kept)


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
        item_cpu=[np.array(row[-2]) / 1e6 for row in rows],
        item_wait=[np.array(row[-1]) / 1e6 for row in rows],
    )


def _is_sound(row: object) -> bool:
    """Return whether a row of the item timer has the numbers that it should have."""
    match row:
        case [*numbers, list(cpus), list(waits)]:
            is_whole = len(numbers) == NUMBERS and len(cpus) == len(waits)
            return is_whole and all(map(_is_time, [*numbers, *cpus, *waits]))
    return False


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < MOST
