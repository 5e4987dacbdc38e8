"""Events of which there are many, in little memory.

A step is a row of columns: about 40 bytes, where its event as objects takes 1 kB.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

ALL = slice(None)
# Columns that an event need not have, and what stands there where it has none: a number, or the
# column that holds the same moment on a device that works while the host waits
MISSING: dict[str, int | str] = {
    "cpu": 0, "tokens": 0, "real": 0, "complete": -1, "averaged": -1,
    "copy_start": "ready", "copy_end": "copied", "busy_start": "copied", "busy_end": "done",
}  # fmt: skip
MOMENTS = ("ready", "copied", "done", "copy_start", "copy_end", "busy_start", "busy_end")


class Texts(Sequence):
    """Events that are seldom read, kept as JSON: a tenth of what they take as objects."""

    def __init__(self):
        self._texts: list[bytes] = []

    def append(self, event: dict[str, Any]) -> None:
        """Take in an event."""
        self._texts.append(json.dumps(event, separators=(",", ":")).encode())

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [json.loads(text) for text in self._texts[index]]
        return json.loads(self._texts[index])


class Steps(Sequence):
    """The `step` events in order; an item is such an event again, a slice is a list of them.

    A whole number takes 4 bytes, or 8 in a column with one that does not fit. `MOMENTS` are kept as
    ns since the step's data was asked for.
    """

    def __init__(self):
        whole = dict.fromkeys(("i", "n", "ready", "copied", "done"))
        self._columns = {name: array("i") for name in whole}
        self._columns |= {"asked": array("q"), "loss": array("d")}

    def __len__(self) -> int:
        return len(self._columns["loss"])  # the last to grow

    def append(self, event: dict[str, Any]) -> None:
        """Take in a `step` event that has been checked."""
        asked, ready, copied, done = event["t"]
        row = {
            "i": event["i"], "n": event["n"],
            "asked": asked, "ready": ready - asked, "copied": copied - asked, "done": done - asked,
        }  # fmt: skip
        for name in ("copy", "busy"):
            if pair := event.get(name):
                row[f"{name}_start"] = pair[0] - asked
                row[f"{name}_end"] = pair[1] - asked
        if spent := event.get("cpu"):
            row["cpu"] = spent
        if pair := event.get("tokens"):
            row["tokens"], row["real"] = pair
        if pair := event.get("comm"):
            row["complete"], row["averaged"] = pair
        for name in row.keys() - self._columns.keys():
            self._columns[name] = self._missing(name)
        for name in self._columns.keys() - row.keys() - {"loss"}:
            instead = MISSING[name]
            row[name] = row[instead] if isinstance(instead, str) else instead
        for name, value in row.items():
            try:
                self._columns[name].append(value)
            except OverflowError:
                self._columns[name] = array("q", self._columns[name])
                self._columns[name].append(value)
        loss = event.get("loss")
        self._columns["loss"].append(math.nan if loss is None else loss)

    def _missing(self, name: str) -> array:
        """Return a column for the steps before the first that has it."""
        instead = MISSING[name]
        if isinstance(instead, str):
            return array(self._columns[instead].typecode, self._columns[instead][: len(self)])
        return array("i", [instead]) * len(self)

    def numbers(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Return a column (rows,) as it is kept, float64 where it may be missing: NaN is a gap."""
        if name not in self._columns:
            return np.full(len(range(*rows.indices(len(self)))), math.nan)
        column = self._columns[name][rows]  # a copy: what lends its memory could not grow
        numbers = np.frombuffer(column, column.typecode)
        if isinstance(missing := MISSING.get(name), int):
            return np.where(numbers == missing, math.nan, numbers)
        return numbers

    def moments(self, name: str, rows: slice = ALL) -> np.ndarray:
        """Return when it was, (rows,) int64, ns on the log's clock: "asked" or one of `MOMENTS`."""
        asked = self.numbers("asked", rows)
        if name == "asked":
            return asked
        known = name if name in self._columns else MISSING[name]
        return asked + self.numbers(str(known), rows)

    def stamps(self, rows: slice = ALL) -> np.ndarray:
        """Return (rows, 6) int64, ns: asked, ready, copy start and end, busy start and end.

        Where the events have no device times (a CPU), copy and compute are what the host did.
        """
        names = ("asked", "ready", "copy_start", "copy_end", "busy_start", "busy_end")
        return np.column_stack([self.moments(name, rows) for name in names])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = {name: column[index] for name, column in self._columns.items()}
        asked = row["asked"]
        loss = None if math.isnan(row["loss"]) else row["loss"]
        times = [asked, *(asked + row[name] for name in ("ready", "copied", "done"))]
        event = {"event": "step", "i": row["i"], "t": times, "n": row["n"], "loss": loss}
        for name in ("copy", "busy"):
            if f"{name}_start" in row:
                event[name] = [asked + row[f"{name}_start"], asked + row[f"{name}_end"]]
        for name, keys in (("tokens", ("tokens", "real")), ("comm", ("complete", "averaged"))):
            if keys[0] in row and row[keys[0]] != MISSING[keys[0]]:
                event[name] = [row[key] for key in keys]
        if row.get("cpu"):
            event["cpu"] = row["cpu"]
        return event
