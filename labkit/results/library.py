"""Saved and recorded runs: load one, list what is there, play one back.

A recorded run is `<machine>/<name>.jsonl.gz` in the package or in a folder of `labkit record`; what
it is stands in its first events.
"""

from __future__ import annotations

import collections
import html
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import BROKEN, RecordError, event_on, opened, read_record
from labkit.results.result import Table
from labkit.results.run import Run
from labkit.results.shipped import Listing

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
HEAD_BYTES = 32 * 1024  # of a record, unpacked: its spec and its machine stand in it
LEAD_NS = 300_000_000  # of a replay, before the first step: what came earlier is there at once


def load(path: str | os.PathLike) -> Run | Measurements | Ranks:
    """Load a saved or recorded run; raises RecordError (a ValueError) on anything else."""
    return kind_of(_head(path).get("spec", {}))(Path(path), recorded=True)


def kind_of(spec: dict[str, Any]) -> type[Run] | type[Measurements] | type[Ranks]:
    """Return what reads a log whose first event holds `spec`."""
    if spec.get("measure") or spec.get("experiment"):
        return Measurements
    return Ranks if spec.get("ranks") else Run


def _head(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Return the first event of each name in a record; {} where it cannot be read."""
    try:
        with opened(path) as file:
            events = map(event_on, reversed(file.read(HEAD_BYTES).split(b"\n")[:-1]))
            return {event["event"]: event for event in events if event}
    except BROKEN:
        return {}


@dataclass(frozen=True)
class Entry:
    """One recorded run in a listing, before it is loaded."""

    name: str
    title: str  # what it shows
    hardware: str
    kind: str  # "gpu" or "cpu"
    date: str
    torch: str
    path: Path
    experiment: bool  # measurements rather than steps

    HEAD = ("name", "what it shows", "RECORDED on", "date", "torch")
    row = property(lambda e: (e.name, e.title, e.hardware, e.date, e.torch))

    def load(self) -> Run | Measurements | Ranks:
        """Load it; it is marked RECORDED wherever it shows."""
        return load(self.path)


class Library(Listing):
    """A listing of recorded runs; prints in short, `.table()` lists every one."""

    def __repr__(self) -> str:
        if not self:
            return "no recorded runs here"
        machines = " and ".join(sorted({entry.hardware for entry in self}))
        some = ", ".join(entry.name for entry in self[:: max(1, len(self) // 8)])
        return (
            f"{len(self)} run{'s' * (len(self) != 1)} RECORDED on {machines}, such as\n{some}.\n"
            "lk.recorded(name) loads one, lk.replay(name) plays it; .table() lists them all."
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def table(self) -> Table:
        """Return name, title, hardware, date and torch version of each."""
        return super().table() if self else Table((), foot=(repr(self),))


def recorded(
    name: str | None = None, folder: str | os.PathLike | None = None
) -> Library | Run | Measurements | Ranks:
    """List the recorded runs, or load the one called `name`; ValueError where it is not there.

    Of several machines a GPU's comes first; `"<machine>/<name>"` asks for one. `folder` is what
    `labkit record --out FOLDER` wrote; None: what comes with the package.
    """
    folder = Path(folder) if folder is not None else Path(labkit.__file__).parent / "records"
    files = [*folder.glob("*.jsonl.gz"), *folder.glob("*/*.jsonl.gz")] if folder.is_dir() else []
    entries = [entry for file in files if (entry := _entry(file))]
    found = Library(sorted(entries, key=lambda e: (e.kind != "gpu", e.hardware, e.name)))
    if name is None:
        return found
    machine, _, plain = str(name).rpartition("/")
    if not NAME.fullmatch(plain) or (machine and not NAME.fullmatch(machine)):
        raise ValueError(f"recorded({name!r}): a name has letters, digits, - and _ only.")
    matching = [e for e in found if e.name == plain and machine in ("", e.path.parent.name)]
    if not matching:
        known = ", ".join(dict.fromkeys(e.name for e in found)) or "none"
        raise ValueError(f"Unknown record {name!r}; available: {known}.")
    return matching[0].load()


def _entry(file: Path) -> Entry | None:
    name, head = file.name.removesuffix(".jsonl.gz"), _head(file)
    spec, machine = head.get("spec"), head.get("machine")
    if not NAME.fullmatch(name) or spec is None or machine is None:
        return None
    title, date = str(spec.get("title", ""))[:100], str(spec.get("utc", "unknown"))[:10]
    torch = str(machine["versions"].get("torch", "unknown"))[:20]
    hardware, experiment = machine["name"][:60], "measure" in spec or "experiment" in spec
    return Entry(name, title, hardware, machine["kind"], date, torch, file, experiment)


class Playback:
    """Stands where a live run has its process and the tail of its log: gives events when due."""

    def __init__(self, events: list[dict[str, Any]], speed: float, clock: Callable[[], float]):
        self.speed, self.clock, self.begun = speed, clock, None
        begin = next(e for e in events if e["event"] == "step")["t"][0] - LEAD_NS
        due = [_end_ns(event) - begin for event in events]
        last = max(at for at, e in zip(due, events, strict=True) if e["event"] == "step")
        # What came before the beginning or behind the last step is due with it
        timed = [(min(max(at, 0), last), e) for at, e in zip(due, events, strict=True)]
        self.left = collections.deque(sorted(timed, key=lambda pair: pair[0]))  # stable
        self.alive = lambda: bool(self.left)
        self.join = lambda: None  # there is no process to wait for

    def read(self) -> list[dict[str, Any]]:
        """Return the events whose time has come since the last call."""
        if self.begun is None:
            self.begun = self.clock()
        now, found = (self.clock() - self.begun) * 1e9 * self.speed, []
        while self.left and self.left[0][0] <= now:
            found.append(self.left.popleft()[1])
        return found

    def stop(self) -> None:
        """Play no further: the run ends here as "stopped"."""
        if self.left:
            end = {"event": "end", "t_ns": 0, "stop": "asked", "code": None}
            self.left = collections.deque([(0, end)])


def _end_ns(event: dict[str, Any]) -> int:
    if event["event"] == "step":
        return max(event["t"][3], (event.get("busy") or (0, 0))[1])
    return int(event.get("t_ns") or 0)


def play(path: str | Path, speed: float = 1.0, clock: Callable[[], float] = time.monotonic) -> Run:
    """Return a Run that grows like the recorded one did, `speed` times as fast.

    Raises RecordError where `path` is no record of a run, ValueError on a bad speed.
    """
    if not isinstance(speed, (int, float)) or not 0 < speed <= 1e6:
        raise ValueError(f"speed={speed!r} is not allowed: use 1 for the real pace, 10 for faster.")
    events = read_record(path)
    if not any(event["event"] == "step" for event in events):
        raise RecordError(f"{path}: it has no steps to replay.")
    played = Playback(events, float(speed), clock)
    return Run(Path(path), process=played, recorded=True, tail=played)
