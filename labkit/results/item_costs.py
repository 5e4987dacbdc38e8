"""What a run knows of its data: the cost of every item and batch, and of handing a batch over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
COLUMNS = (
    "number", "start_ns", "count", "cpu", "wait", "line", "collate_cpu", "collate_wait",
    "collate_line", "between",
)  # fmt: skip


@dataclass(frozen=True)
class ItemCosts:
    """Per prepared batch, in the order of their start; times in s, one entry a batch.

    Attributes:
        worker: The loader process, -1 for the training loop itself.
        number: Which batch of its worker it was, from 0.
        start: When it began, on the run's clock.
        count: Its samples.
        cpu: CPU time of fetching its samples.
        wait: Time of fetching in which the process wanted no core: it read or slept.
        line: Time of fetching in which it wanted a core and had none.
        collate_cpu: As `cpu`, of the collate step. `collate_wait` likewise.
        between: CPU time of the process, all threads, between the batch before and this one.
        item_cpu: Of each batch, CPU time of some of its samples; empty where not timed singly.
        item_wait: Of the same samples, the waiting.
    """

    worker: np.ndarray
    number: np.ndarray
    start: np.ndarray
    count: np.ndarray
    cpu: np.ndarray
    wait: np.ndarray
    line: np.ndarray
    collate_cpu: np.ndarray
    collate_wait: np.ndarray
    between: np.ndarray
    item_cpu: list[np.ndarray]
    item_wait: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, keep: np.ndarray) -> ItemCosts:
        """Return the batches where the mask `keep` is true."""
        values = {}
        for name, column in vars(self).items():
            if isinstance(column, list):
                values[name] = [row for row, yes in zip(column, keep, strict=True) if yes]
            else:
                values[name] = column[keep]
        return ItemCosts(**values)


def item_costs(run: Any) -> ItemCosts | None:
    """Read what `run` measured of its items; None where it measured nothing (an older record)."""
    rows = [
        (event["worker"], row)
        for event in run.item_events
        for row in event["rows"]
        if _is_sound(row)
    ]
    if not rows:
        return None
    rows.sort(key=lambda pair: pair[1][1])
    table = np.array([row[: len(COLUMNS)] for _, row in rows], dtype=float)
    column = dict(zip(COLUMNS, table.T, strict=True))
    seconds = {name: values / 1e6 for name, values in column.items() if name in COLUMNS[3:]}
    seconds["wait"] = np.maximum(0.0, seconds["wait"] - LINE_MISSED * seconds["line"])
    line = seconds.pop("collate_line")
    seconds["collate_wait"] = np.maximum(0.0, seconds["collate_wait"] - LINE_MISSED * line)
    return ItemCosts(
        worker=np.array([worker for worker, _ in rows]),
        number=column["number"].astype(int),
        start=np.array([run.seconds(row[1]) for _, row in rows]),
        count=column["count"].astype(int),
        item_cpu=[np.array(row[-2]) / 1e6 for _, row in rows],
        item_wait=[np.array(row[-1]) / 1e6 for _, row in rows],
        **seconds,
    )


def _is_sound(row: Any) -> bool:
    """Whether a row of a record has the shape that `bench.item_times` writes."""
    if not isinstance(row, list) or len(row) != len(COLUMNS) + 2:
        return False
    *numbers, cpus, waits = row
    if not isinstance(cpus, list) or not isinstance(waits, list) or len(cpus) != len(waits):
        return False
    return all(type(n) in (int, float) and 0 <= n < 2**62 for n in [*numbers, *cpus, *waits])
