"""Events of which there are many, in little memory.

A step is a row of numbers: about 110 bytes, where its event as objects takes 1 kB.
"""

from __future__ import annotations

import copy
import itertools
import math
from array import array
from collections.abc import Iterable

import numpy as np

from labkit.stamps.record import Event

ALL = slice(None)
# Moments of the host, ns: it asks for a batch, has it, has issued its copy, has issued the compute;
# on a CPU the copy and the compute are over then
HOST = ("asked", "ready", "copied", "done")
ASKED, READY, COPIED, DONE = range(len(HOST))  # columns of `host_ns`
NUMBERS = ("n", "cpu", "bytes", "loss")  # keys of an event that hold a number
MOMENTS = {  # {key of an event: the columns of the numbers that it may hold}
    "t": HOST,
    "copy": ("copy_start", "copy_end"),
    "busy": ("busy_start", "busy_end"),
    "comm": ("complete", "averaged"),
}
COLUMNS = (*NUMBERS, *itertools.chain(*MOMENTS.values()))
SAME_MOMENT = {  # where a step has no times of a device, it worked while the host waited
    "copy_start": "ready",
    "copy_end": "copied",
    "busy_start": "copied",
    "busy_end": "done",
}
BUSY = MOMENTS["busy"]  # the device computes from the one to the other
# The columns of `Run.stamps`: three spans, in which the host waits, and the device copies, computes
STAMPS = ("asked", "ready", *MOMENTS["copy"], *BUSY)


class Steps:
    """The `step` events in order, in columns of numbers; NaN is a gap.

    A float holds every ns of 100 days, as which the machine's clock counts from its start.
    """

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def as_of_now(self) -> Steps:
        """Return the steps so far, in the same memory: those that follow do not show in them."""
        return copy.copy(self)

    def append(self, event: Event) -> None:
        """Take in a `step` event that has been checked."""
        row = {name: event[name] for name in NUMBERS if event.get(name) is not None}
        for key, names in MOMENTS.items():
            row.update(zip(names, event.get(key) or (), strict=False))
        for name, column in self._columns.items():
            column.append(row.get(name, math.nan))
        self._count += 1

    def moments(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Return a column (rows,); of a device's moment that is missing, the host's."""
        known = range(self._count)[rows]
        # a slice is a copy: what lends its memory cannot grow
        values = np.array(self._columns[name][known.start : known.stop])
        if name in SAME_MOMENT:
            values = np.where(np.isnan(values), self.moments(SAME_MOMENT[name], rows), values)
        return values

    def table(self, names: Iterable[str], rows: slice) -> np.ndarray:
        """Return several columns of `moments` (rows, names), ns on the log's clock."""
        return np.column_stack([self.moments(name, rows) for name in names])

    def has_device_times(self) -> bool:
        """Return whether the times of a device are known, of a step at least."""
        return not np.isnan(np.array(self._columns["busy_start"][: self._count])).all()
