"""Events of which there are many, in little memory.

A step is a row of columns: about 40 bytes, where its event as objects takes 1 kB.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from typing import overload

import numpy as np

from labkit.results.record import Event

ALL = slice(None)
# Columns that an event need not have, and what stands there where it has none: a number, or the
# column that holds the same moment on a device that works while the host waits
MISSING_NUMBERS = {"cpu": 0, "tokens": 0, "real": 0, "complete": -1, "averaged": -1}
SAME_MOMENT = {
    "copy_start": "ready",
    "copy_end": "copied",
    "busy_start": "copied",
    "busy_end": "done",
}
PAIRS = {  # {key of an event: the columns of the two numbers it holds}
    "tokens": ("tokens", "real"),
    "comm": ("complete", "averaged"),
}
INTERVALS = ("copy", "busy")  # keys of an event that hold a start and an end, ns
HOST = ("ready", "copied", "done")  # moments of the host, after "asked"
STAMPS = ("asked", "ready", "copy_start", "copy_end", "busy_start", "busy_end")


class Texts(Sequence[Event]):
    """Events that are seldom read, kept as JSON: a tenth of what they take as objects."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def append(self, event: Event) -> None:
        """Take in an event."""
        self._texts.append(json.dumps(event, separators=(",", ":")).encode())

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [json.loads(text) for text in self._texts[index]]
        return json.loads(self._texts[index])


class Steps(Sequence[Event]):
    """The `step` events in order; an item is such an event again, a slice is a list of them.

    A whole number takes 4 bytes, or 8 in a column with one that does not fit. Moments are kept as
    ns since the step's data was asked for.
    """

    def __init__(self) -> None:
        self._columns = {name: array("i") for name in ("i", "n", *HOST)}
        self._columns["asked"] = array("q")
        self._columns["loss"] = array("d")

    def __len__(self) -> int:
        return len(self._columns["loss"])  # the last to grow

    def append(self, event: Event) -> None:
        """Take in a `step` event that has been checked."""
        row = _row_of(event)
        for name in row.keys() - self._columns.keys():
            self._columns[name] = self._column_so_far(name)
        for name in self._columns.keys() - row.keys() - {"loss"}:
            same = SAME_MOMENT.get(name)
            row[name] = MISSING_NUMBERS[name] if same is None else row[same]
        for name, value in row.items():
            try:
                self._columns[name].append(value)
            except OverflowError:
                self._columns[name] = array("q", self._columns[name])
                self._columns[name].append(value)
        loss = event.get("loss")
        self._columns["loss"].append(math.nan if loss is None else loss)

    def _column_so_far(self, name: str) -> array:
        """Return a column for the steps before the first that has it."""
        if name in SAME_MOMENT:
            same = self._columns[SAME_MOMENT[name]]
            return array(same.typecode, same[: len(self)])
        return array("i", [MISSING_NUMBERS[name]]) * len(self)

    def numbers(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Return a column (rows,) as it is kept, float64 where it may be missing: NaN is a gap."""
        if name not in self._columns:
            return np.full(len(range(*rows.indices(len(self)))), math.nan)
        column = self._columns[name][rows]  # a copy: what lends its memory could not grow
        numbers = np.frombuffer(column, column.typecode)
        if name in MISSING_NUMBERS:
            return np.where(numbers == MISSING_NUMBERS[name], math.nan, numbers)
        return numbers

    def moments(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Return when it was, (rows,) int64, ns on the log's clock: a name in `STAMPS` or `HOST`.

        Where the events have no device times (a CPU), copy and compute are what the host did.
        """
        asked = self.numbers("asked", rows)
        if name == "asked":
            return asked
        return asked + self.numbers(name if name in self._columns else SAME_MOMENT[name], rows)

    def stamps(self, rows: slice = ALL) -> np.ndarray:
        """Return the `moments` in `STAMPS` (rows, 6) int64, ns."""
        return np.column_stack([self.moments(name, rows) for name in STAMPS])

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        row = {name: column[index] for name, column in self._columns.items()}
        return _event_of(row)


def _row_of(event: Event) -> dict[str, int]:
    """Return the columns of a step, but for its loss."""
    asked = event["t"][0]
    row = {"i": event["i"], "n": event["n"], "asked": asked}
    for name, moment in zip(HOST, event["t"][1:], strict=True):
        row[name] = moment - asked
    for name in INTERVALS:
        if event.get(name):
            start, end = event[name]
            row[f"{name}_start"] = start - asked
            row[f"{name}_end"] = end - asked
    if event.get("cpu"):
        row["cpu"] = event["cpu"]
    for name, columns in PAIRS.items():
        if event.get(name):
            row.update(zip(columns, event[name], strict=True))
    return row


def _event_of(row: dict[str, int | float]) -> Event:
    """Return the event that a row of columns was made of."""
    asked = row["asked"]
    event: Event = {
        "event": "step",
        "i": row["i"],
        "t": [asked, *(asked + row[name] for name in HOST)],
        "n": row["n"],
        "loss": None if math.isnan(row["loss"]) else row["loss"],
    }
    for name in INTERVALS:
        if f"{name}_start" in row:
            event[name] = [asked + row[f"{name}_start"], asked + row[f"{name}_end"]]
    for name, columns in PAIRS.items():
        first = columns[0]
        if first in row and row[first] != MISSING_NUMBERS[first]:
            event[name] = [row[column] for column in columns]
    if row.get("cpu"):
        event["cpu"] = row["cpu"]
    return event
