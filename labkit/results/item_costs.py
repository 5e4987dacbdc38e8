"""What the items of a run cost to prepare, batch by batch, as predictions need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.instruments.loader_work import ItemTimes
from labkit.stamps.event_shapes import fits

if TYPE_CHECKING:
    from labkit.results.run import Run

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
TIMES = ["cpu", "wait", "line", "collate_cpu", "collate_wait", "collate_line", "between"]


@dataclass(frozen=True)
class ItemCosts:
    """Per prepared batch, in the order of their start; times in s, one entry a batch."""

    cpu: np.ndarray  # CPU time of fetching its samples
    wait: np.ndarray  # time of fetching in which the process wanted no core: it read or slept
    collate_cpu: np.ndarray  # as `cpu` and `wait`, of the collate step
    collate_wait: np.ndarray
    between: np.ndarray  # CPU time of the process, all threads, since the batch before
    item_cpu: np.ndarray  # arrays: as `cpu`, of single samples; empty where not timed singly
    item_wait: np.ndarray

    def __len__(self) -> int:
        return len(self.cpu)


def item_costs(run: Run) -> ItemCosts | None:
    """Read what `run` measured of its items; None where it measured nothing (an older record).

    The first batch of each process is left out, and what was begun after the last step.
    """
    rows = [row for event in run.item_events for row in event["rows"] if _is_sound(row)]
    if not rows:
        return None
    import pandas

    table = pandas.DataFrame(rows, columns=ItemTimes._fields).sort_values("start_ns", kind="stable")
    in_time = run.seconds(table.start_ns.to_numpy(float)) < run.stamps[-1, 5]
    table = table[(table.done > 0) & in_time]
    times_s = np.asarray(table[TIMES], float).T / 1e6
    cpu, wait, line, collate_cpu, collate_wait, collate_line, between = times_s
    return ItemCosts(
        cpu=cpu,
        wait=np.maximum(wait - LINE_MISSED * line, 0),
        collate_cpu=collate_cpu,
        collate_wait=np.maximum(collate_wait - LINE_MISSED * collate_line, 0),
        between=between,
        item_cpu=_arrays(table.item_cpu),
        item_wait=_arrays(table.item_wait),
    )


def _arrays(times_us: Iterable[list[float]]) -> np.ndarray:
    """Return an array of arrays, s."""
    return np.fromiter((np.array(times) / 1e6 for times in times_us), dtype=object)


def _is_sound(row: object) -> bool:
    """Return whether a row of an `items` event has the numbers of an `ItemTimes`."""
    return isinstance(row, list) and fits(row, "item_times") and len(row[-1]) == len(row[-2])
