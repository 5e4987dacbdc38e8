"""What the items of a run cost to prepare, batch by batch, as predictions need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.bench.loader_rows import ItemTimes
from labkit.results.columns import Columns
from labkit.results.event_shapes import MOST
from labkit.results.run_log import RunLog

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65


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
    rows = [ItemTimes(*row) for event in run.item_events for row in event["rows"] if _is_sound(row)]
    if not rows:
        return None
    rows.sort(key=lambda row: row.start_ns)

    def column(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], dtype=float)

    def seconds(name: str) -> np.ndarray:
        return column(name) / 1e6

    wait = seconds("wait") - LINE_MISSED * seconds("line")
    collate_wait = seconds("collate_wait") - LINE_MISSED * seconds("collate_line")
    return ItemCosts(
        number=column("done").astype(int),
        start=run.seconds(column("start_ns")),
        cpu=seconds("cpu"),
        wait=np.maximum(0.0, wait),
        collate_cpu=seconds("collate_cpu"),
        collate_wait=np.maximum(0.0, collate_wait),
        between=seconds("between"),
        item_cpu=_arrays(row.item_cpu for row in rows),
        item_wait=_arrays(row.item_wait for row in rows),
    )


def _arrays(times_us: Iterable[list[float]]) -> np.ndarray:
    """Return an array of arrays, s."""
    return np.fromiter((np.array(times) / 1e6 for times in times_us), dtype=object)


def _is_sound(row: object) -> bool:
    """Return whether a row of an `items` event has the numbers of an `ItemTimes`."""
    match row:
        case [*numbers, list(cpus), list(waits)]:
            is_whole = len(row) == len(ItemTimes._fields) and len(cpus) == len(waits)
            return is_whole and all(map(_is_time, [*numbers, *cpus, *waits]))
    return False


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < MOST
