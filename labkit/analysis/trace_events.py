"""The events of a trace that count, in columns: a few numbers per event instead of its text."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis import trace_names as kinds
from labkit.analysis.trace_file import TraceFile

# 2**61 ns is the year 2043 since 1970: sums of two stay inside 64 bits.
_MOST_NS = 2**61
_LONGEST_NAME = 1000  # characters kept; C++ templates run to several thousand


def nanoseconds(micros: Any) -> int | None:
    """Convert the text of a number of µs to whole ns; None unless a number within ±2**61 ns."""
    if type(micros) is not str:
        return None
    whole, _, fraction = micros.partition(".")
    if whole.isdecimal() and len(whole) <= 16 and (not fraction or fraction.isdecimal()):
        # Exact, where a float of µs since 1970 would be good to 0.25 µs.
        ns = int(whole) * 1000
        if fraction:
            ns += (int((fraction + "000")[:4]) + 5) // 10  # tenths of a ns, rounded
        return ns if ns < _MOST_NS else None
    try:
        # The length bound keeps a number of a million digits from costing seconds.
        value = float(micros) * 1000 if len(micros) <= 40 else math.nan
    except ValueError:
        return None
    return round(value) if abs(value) < _MOST_NS else None


def _identifier(text: Any) -> int:
    """Return a correlation or external id, 0 where there is none."""
    return int(text) if type(text) is str and len(text) <= 18 and text.isdecimal() else 0


@dataclass(frozen=True)
class Columns:
    """The events that count, one array entry each; times in ns.

    Attributes:
        kind: One of the kinds in `trace_names`.
        start: When it began.
        end: When it ended, never before `start`.
        place: Index into `devices` for events on a device, else into `processes`.
        correlation: What a launch and the device work it launched share; 0 where unknown.
        external: What an operator and the launches and device work under it share; 0 where unknown.
        name: Index into `kernels`, -1 for anything but kernels.
    """

    kind: np.ndarray
    start: np.ndarray
    end: np.ndarray
    place: np.ndarray
    correlation: np.ndarray
    external: np.ndarray
    name: np.ndarray
    kernels: tuple[str, ...]
    processes: tuple[str, ...]
    devices: tuple[str, ...]


class _Builder:
    """Collects columns; every `add` costs about 3 µs, which is most of the time of a reading."""

    def __init__(self) -> None:
        self.kinds = array("b")
        self.rows = {key: array("q") for key in ("start", "end", "correlation", "external")}
        self.indices = {key: array("i") for key in ("place", "name")}
        self.kernels: dict[str, int] = {}
        self.processes: dict[str, int] = {}
        self.devices: dict[str, int] = {}

    def add(self, event: Any) -> str | None:
        """Take in one event if it counts; return what is wrong with it, None where nothing is."""
        if type(event) is not dict:
            return "there is no object"
        if event.get("ph") != "X":  # flows, marks, counters and names carry no duration
            return None
        name = event.get("name")
        if type(name) is str and len(name) > _LONGEST_NAME:
            name = name[:_LONGEST_NAME]
        try:
            kind = kinds.kind_of(event.get("cat"), name)
        except TypeError:
            return "its category or name is not text"
        if kind is None:
            return None
        start, length = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or length is None:
            return "its 'ts' or 'dur' is not a time in µs"
        if length < 0:
            return "its duration is negative"
        args = event.get("args") or {}
        process = event.get("pid")
        if type(args) is not dict or isinstance(process, (dict, list)):
            return "its 'args' or 'pid' has the wrong type"
        self._append(kind, start, start + length, name, str(process)[:100], args)
        return None

    def _append(self, kind: int, start: int, end: int, name: str, process: str, args: dict) -> None:
        places = self.devices if kind in kinds.ON_DEVICE else self.processes
        index = -1
        if kind == kinds.KERNEL:
            index = self.kernels.setdefault(name, len(self.kernels))
            if "nccl" in name[:20].lower() or "rccl" in name[:20].lower():
                kind = kinds.COMMUNICATION_KERNEL
        external = args.get("External id") or args.get("external id")
        self.kinds.append(kind)
        self.rows["start"].append(start)
        self.rows["end"].append(end)
        self.rows["correlation"].append(_identifier(args.get("correlation")))
        self.rows["external"].append(_identifier(external))
        self.indices["place"].append(places.setdefault(process, len(places)))
        self.indices["name"].append(index)

    def columns(self) -> Columns:
        return Columns(
            kind=np.frombuffer(self.kinds, np.int8),
            **{key: np.frombuffer(rows, np.int64) for key, rows in self.rows.items()},
            **{key: np.frombuffer(rows, np.int32) for key, rows in self.indices.items()},
            kernels=tuple(self.kernels),
            processes=tuple(self.processes),
            devices=tuple(self.devices),
        )


def read_columns(file: TraceFile) -> Columns:
    """Read the events of `file` that count.

    Up to 1 % of malformed events are left out, with a note in `file.notes`.

    Raises:
        TraceError: The file cannot be read, has no events that count, or too many malformed ones.
    """
    builder = _Builder()
    bad, first = 0, ""
    for number, event in enumerate(file, 1):
        fault = builder.add(event)
        if fault:
            bad += 1
            first = first or f"in event {number:,} {fault}"
    good = len(builder.kinds)
    if bad > 0.01 * (good + bad):
        raise file.error(f"has malformed events ({bad:,} beside {good:,} usable ones; {first})")
    if not good:
        raise file.error("holds no timed event of torch.profiler")
    if bad:
        file.notes.append(f"{bad:,} malformed events of {good + bad:,} were left out; {first}.")
    return builder.columns()
