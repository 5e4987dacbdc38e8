"""A run that may still go on, and its log; what that says at a moment is a snapshot."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from labkit.results import saving
from labkit.results.log_data import LogData
from labkit.stamps.interrupts import collect_interrupts
from labkit.stamps.record import events_of, open_record, record_file

if TYPE_CHECKING:
    from typing_extensions import Self

POLL_S = 0.05  # between two looks at a run that goes on

Data = TypeVar("Data", bound=LogData)


def in_notebook() -> bool:
    """Return whether this is a Jupyter kernel, whose front end shows HTML and widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class LogReader(Generic[Data]):
    """Reads a log as it grows. A lock, as a panel stops its run in another thread."""

    def __init__(self, log: Data, process: Any):
        """Read a saved record at once; else `process`, or a dead one, writes the log."""
        self._log = log
        self._process = process
        self._lock = threading.Lock()
        for event in events_of(log.path) if log.recorded else ():
            log.take_in(event)
        self._snapshot = log.as_of_now(alive=not log.recorded)  # the last one

    def read(self) -> Data:
        """Return what the log says now; the last snapshot where there is nothing new."""
        with self._lock:
            last = self._snapshot
            if self._log.recorded or (not last.alive and last.event("end")):
                return last  # nothing will follow
            alive = self._process is not None and self._process.is_alive
            if self._process is not None and not alive:
                self._process.join()
            if self._log.follow() or alive != last.alive:
                self._snapshot = self._log.as_of_now(alive)
            return self._snapshot


class LiveResult(Generic[Data]):
    """A run that may still go on, and its log. It can be waited for, ended and saved.

    Each name that a live class takes over from its `KIND` of data is that of the data of now.
    """

    KIND: type[Data]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls.KIND):
            value = getattr(cls.KIND, name)
            if not name.startswith("__") and getattr(cls, name) is value:
                setattr(cls, name, property(attrgetter(f"data.{name}"), doc=value.__doc__))

    def __init__(
        self,
        path: Path,
        process: Any = None,
        recorded: bool = False,
        read: Callable[[], Data] | None = None,
    ):
        """Follow a run's folder, or read a saved record.

        `process` writes it: a supervisor's handle, a watched loop or a replay, which says whether
        it `is_alive`, and can `stop()` and `join()`: then its log is whole. Of a part of a larger
        record `read` returns the data of now.
        """
        self.path = Path(path)
        self.recorded = recorded
        self._process = process
        self._read = read or LogReader(self.KIND(self.path, recorded=recorded), process).read

    @property
    def data(self) -> Data:
        """What its log says now: a snapshot, which stays as it is while the run goes on."""
        return self._read()

    def wait(self, each: Callable[[Self], object] | None = None) -> Self:
        """Block until the run has ended, calling `each(run)` as it grows. An interrupt stops it.

        In a notebook the stopped run is returned; elsewhere KeyboardInterrupt is passed on.
        """
        try:
            return self.wait_or_raise(each)
        except KeyboardInterrupt:
            ended = self.data
            if ended.running or not in_notebook():
                raise
            if ended.outcome == "stopped":
                print("stopped: what was measured by then is in what this returned.")
            return self

    def wait_or_raise(self, each: Callable[[Self], object] | None = None) -> Self:
        """Do as `wait`, but pass an interrupt on in a notebook too: this is one run of several."""
        # so that reading an event or stopping is never cut short
        with collect_interrupts() as pressed:
            try:
                while self.data.running and not pressed:
                    if each is not None:
                        each(self)
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                pressed.append(0.0)
            if pressed:
                self.stop()
                pressed.clear()
                raise KeyboardInterrupt
            if self._process is not None:
                self._process.join()
            return self

    def stop(self) -> Self:
        """End the run now (0.1 s; 1.2 s where the bench does not answer) and keep what it did."""
        if self._process is not None:
            self._process.stop()  # which waits for the last event: by then every process is gone
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write the record to `path`: one file, packed where its name ends in .gz; return it.

        A file that is there is replaced only with `overwrite`, else FileKept is raised, which is a
        ValueError and an OSError. Where writing fails, the file that was there stays.
        """
        path = Path(path)
        if path.exists() and os.path.samefile(record_file(self.path), path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            old = files.enter_context(open_record(self.path))
            new = files.enter_context(saving.replacing(path, overwrite))
            if path.suffix == ".gz":
                new = files.enter_context(gzip.GzipFile("", "wb", fileobj=new))
            new.writelines(old)
            new.writelines(f"{line}\n".encode() for line in self.extra_lines())
        return path

    def extra_lines(self) -> Iterable[str]:
        """Return the lines of JSON that a saved record has beyond the log."""
        return ()

    def __repr__(self) -> str:
        return repr(self.data)
