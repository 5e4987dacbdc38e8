"""An event log and the process that writes it: how it goes on, how it ended, how it is kept.

The log is the record. Nothing derived is stored, so a live run, a finished one and a record made
on other hardware are the same thing here. What the events mean is up to the kinds of log: a `Run`
of training steps, `Ranks`, the `Measurements` of an experiment.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.process.events import FILE_NAME
from labkit.results import outcome
from labkit.results.machine import Machine
from labkit.results.record import Tail, opened, read_record
from labkit.wiring import above


def of_one_moment(compute: Callable) -> Callable:
    """Let a function whose first argument is a result see one moment of it, start to end."""

    @functools.wraps(compute)
    def held(self: EventLogResult, *args: Any, **kwargs: Any) -> Any:
        with self.as_of_now():
            return compute(self, *args, **kwargs)

    return held


def derived(compute: Callable, doc: str | None = None) -> property:
    """Make a property whose value is derived from one moment of the log."""
    return property(of_one_moment(compute), doc=doc)


def fact(event: str, key: str, doc: str, default: Any = None) -> property:
    """Make a property that is what the last `event` says of `key`."""
    return property(lambda log: log._fact(event, key, default), doc=doc)


class EventLogResult:
    """One event log, live or recorded; reading it runs no code.

    Whoever asks a live one for anything gets what it has written by then.
    """

    SERIES: tuple[str, ...] = ()  # events of which every one is kept; of others, the last
    _alive = False  # whether its process was, when the log was last read

    def __init__(self, path: Path, process: Any = None, recorded: bool = False, tail: Any = None):
        """Read the log at `path`: a run's folder, or a saved record (`recorded`: not live here).

        `process` is a live supervisor's handle; `tail` is read in place of the file (a replay).
        """
        self.path, self.recorded = Path(path), recorded
        self.alias: str | None = None  # what figures call it where its knobs are to stay hidden
        self._process = process
        self._reading = threading.Lock()
        self._kept: dict[str, dict[str, Any]] = {}  # the last event of each name
        self._series: dict[str, list[dict[str, Any]]] = {name: [] for name in self.SERIES}
        self._holds: set[object] = set()  # nothing is read on its own while one is in here
        self._tail = tail
        if tail is None and recorded:
            with self._hold():
                self._absorb(read_record(self.path))
        elif tail is None:
            self._tail = Tail(self.path / FILE_NAME)

    # -- the log ---------------------------------------------------------------------------------

    def refresh(self) -> EventLogResult:
        """Read what has been written since the last call."""
        if self._tail is None:
            return self
        with self._reading, self._hold():  # a panel stops its run in a thread: once is enough
            if self._tail is not None:
                alive = self._process is not None and self._process.alive()
                self._absorb(self._tail.read())
                self._alive = alive  # only now: who asks meanwhile is told of the moment before
                if not alive and "end" in self._kept:
                    self._tail = None  # complete: nothing will follow
        return self

    @contextlib.contextmanager
    def as_of_now(self) -> Iterator[EventLogResult]:
        """Read what has been written, and nothing more within the block.

        So all that is derived there, a figure or a diagnosis, is of one moment.
        """
        self._now()
        with self._hold():
            yield self

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        mine = object()
        try:  # wherever an interrupt comes, none is left behind
            self._holds.add(mine)
            yield
        finally:
            self._holds.discard(mine)

    def _now(self) -> EventLogResult:
        """Read what has been written since (6 µs while it grows), unless held at a moment."""
        return self if self._holds else self.refresh()

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the last event of that name; None where there is none."""
        return self._now()._kept.get(name)

    def _fact(self, event: str, key: str, default: Any = None) -> Any:
        """Return what the last event of that name says of `key`; null is like nothing."""
        value = (self.event(event) or {}).get(key)
        return default if value is None else value

    def _absorb(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        """Keep what matters of one event."""
        name = event["event"]
        if name in self._series:
            self._series[name].append(event)
        else:
            self._kept[name] = event

    # -- what it was, and how it went ------------------------------------------------------------

    # fmt: off
    id = derived(lambda log: log._fact("spec", "run", log.path.name),
                 "The run's name: date, time and six hex digits.")
    utc = fact("spec", "utc", "When it was started, as an ISO time in UTC; None if unknown.")
    machine = derived(lambda log: Machine.from_dict(log.event("machine") or {}),
                      "The machine it ran on.")
    mark = derived(lambda log: f"RECORDED on {log.machine.name}" if log.recorded else None,
                   '"RECORDED on ..." where it was not measured here; None where it was.')
    stage = derived(lambda log: log.event("stage") or {"name": "starting"},
                    "The last stage before training: `name`, and `done` of `total` where counted.")
    outcome = derived(lambda log: outcome.outcome(log._kept, log._alive),
                      '"running", "finished", "stopped" or "failed".')
    running = derived(lambda log: log.outcome == "running", "True until it has ended.")
    error = derived(lambda log: outcome.reason(log._kept, log._alive),
                    "Why it failed, with a remedy where one is known; None if it did not.")
    traceback = fact("error", "traceback", "The bench's own, where an exception ended the run.")
    # fmt: on

    def wait(self, each: Any = None, period_s: float = 0.05) -> EventLogResult:
        """Block until the run has ended, calling `each(run)` as it grows.

        An interrupt stops the run before it is passed on.
        """
        try:
            while self.running:
                if each is not None:
                    each(self)
                time.sleep(period_s)
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            self.refresh()
        return self._settle()

    def stop(self) -> EventLogResult:
        """End the run now (0.1 s; 1.2 s where the bench does not answer) and keep what it did."""
        if self._process is not None:
            self._process.stop()
        return self._settle()

    def _settle(self) -> EventLogResult:
        """Wait for the last event: the supervisor writes it once every process is gone."""
        if self._process is not None:
            self._process.join()
        return self.refresh()

    # -- keeping and showing ---------------------------------------------------------------------

    @of_one_moment
    def plot(self, **drawing: Any) -> Any:
        """Draw it as a matplotlib Figure; the options are those of its figure."""
        return above(f"{type(self).__name__}.plot")(self, **drawing)

    def save(self, path: str | os.PathLike) -> Path:
        """Write the record to `path`: one file, packed where its name ends in .gz; return it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        packs = gzip.open if path.suffix == ".gz" else open
        with opened(self.path) as old, packs(path, "wb") as new:
            shutil.copyfileobj(old, new)
            new.writelines(f"{line}\n".encode() for line in self._extra_lines())
        return path

    @of_one_moment
    def __repr__(self) -> str:
        mark = f"{self.mark}: " if self.recorded else ""
        what = f"{type(self).__name__}({self._what()}) {self.outcome}"
        return f"{mark}{what}: {self.error or self.numbers}"

    def _extra_lines(self) -> Iterable[str]:
        """Return the lines of JSON that a saved record has beyond the log."""
        return ()
