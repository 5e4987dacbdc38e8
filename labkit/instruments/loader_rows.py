"""The rows of a batch in an `items` event: what a loader's process writes, and what readers name.

In the log a row is a list of its fields in this order.
"""

from __future__ import annotations

from typing import NamedTuple


class BatchRow(NamedTuple):
    """A batch: moments and times in ns."""

    done: int  # batches of this process before it
    batch: int  # its number in the pass
    of_pass: int
    start: int
    fetched: int  # all items are there
    ready: int  # it is collated
    cpu_ns: int
    items: int
    slow_ns: int  # of the slowest of them
    line_ns: int  # in line for a core
    slow_index: object


class ItemTimes(NamedTuple):
    """A batch whose items were timed one by one: times in µs, those of a process's thread."""

    done: int  # batches of this process before it
    start_ns: int
    items: int
    cpu: float  # CPU time of all items together
    wait: float  # time of all items in which no core was wanted
    line: float  # time of all items in line for a core
    collate_cpu: float
    collate_wait: float
    collate_line: float
    between: float  # CPU time of the process, all threads, since the batch before
    item_cpu: list[float]  # of single items
    item_wait: list[float]
