"""The event log: one JSON object per line, one `write()` per line.

Several processes append to the same file with O_APPEND: a kill can cost at most the line being
written, which readers ignore. `t_ns` is on `time.perf_counter_ns`, one monotonic clock for all
processes of the machine. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from labkit.stamps.descriptors import OwnDescriptor
from labkit.stamps.folder_rights import private
from labkit.stamps.interrupts import signal_of
from labkit.stamps.keys import masked, secrets_in
from labkit.stamps.locks import one_writer

VERSION = 1
FILE_NAME = "events.jsonl"
SPEC_NAME = "spec.json"  # what the bench is asked to do
XRAY_NAME = "xray.json.gz"  # the trace of the profiled steps
RowFailure = Literal["skipped", "out of memory", "mistake"]  # why a row has no numbers
RESERVE_NAME = "reserve"  # a file that is given up when the disk is full
RESERVE_BYTES = 256 * 1024  # its size
MOST_KEPT = 4 * 2**20  # bytes that wait for room on a full disk
# What an event may hold of somebody else's: errors, why something is missing, measured values
FREE_TEXTS = {"message", "traceback", "why", "error", "text", "line", "values", "points"}

now_ns = time.perf_counter_ns


class EventLog:
    """An append-only event file that never raises once open; what a full disk refuses waits.

    Secrets are masked in the texts of an event that somebody else wrote. It is of the process that
    opens it: one that is forked from that writes nothing.
    """

    def __init__(self, folder: str | Path):
        self._path = os.path.join(folder, FILE_NAME)
        self._file = self._opened()
        self._closed = False
        self._secrets = secrets_in(os.environ)
        self._reserve = os.path.join(folder, RESERVE_NAME)
        self._kept = b""
        self.error: OSError | None = None

    def write(self, event: str, **values: object) -> None:
        """Append one event, stamped now."""
        told = {name: self._masked(values[name]) for name in FREE_TEXTS & values.keys()}
        line = {"event": event, "t_ns": now_ns(), **values, **told}
        self.write_line(json.dumps(line, separators=(",", ":"), allow_nan=False, default=str))

    def _masked(self, value: object) -> object:
        """Return a value with the secrets in its texts masked, not those in the names of a dict."""
        if isinstance(value, dict):
            return {name: self._masked(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._masked(each) for each in value]
        return masked(value, self._secrets) if isinstance(value, str) else value

    def stage(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Write what the run is busy with before it measures, and how far that is."""
        self.write("stage", name=name, done=done, total=total)

    def waiting(self, name: str) -> None:
        """Write what the run waits for before it can begin."""
        self.write("stage", name=name, done=None, total=None, waiting=True)

    def write_line(self, line: str) -> None:
        """Append one finished line of JSON, or several."""
        self._kept = self._append(self._kept + f"{line}\n".encode())
        if self._kept:
            self.flush()

    def flush(self) -> bool:
        """Write what was refused before, giving up the reserve for it; return whether it fits."""
        if self._kept:
            with contextlib.suppress(OSError):
                os.unlink(self._reserve)
            self._kept = self._append(self._kept)
        if len(self._kept) > MOST_KEPT:
            self._kept = b""
        return not self._kept

    def _append(self, data: bytes) -> bytes:
        """Write `data`; return the lines that have not become whole, to be written again."""
        written = 0
        if self._closed or self._file.pid != os.getpid():
            return b""
        try:
            if not self._file.is_ours():  # a program has closed all that it may have had open
                self._file = self._opened()
            fd = self._file.fd
            with one_writer(fd):
                while written < len(data):
                    written += os.write(fd, data[written:])
        except OSError as error:
            if signal_of(error) is not None:
                raise
            self.error = error
            whole = data.rfind(b"\n", 0, written) + 1
            return (b"\n" if whole < written else b"") + data[whole:]
        return b""

    def close(self) -> None:
        """Let go of the file; what is written later is lost, and nothing else happens."""
        self._closed = True
        self._file.close()

    def _opened(self) -> OwnDescriptor:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        return OwnDescriptor(private(self._path, flags))


def events_named(name: str, log: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yield the events of a name in a log, the oldest first; a torn line is none.

    OSError: there is no such file of this user's.
    """
    begins = f'{{"event":"{name}",'.encode()  # as `EventLog.write` writes it
    with open(log, "rb", opener=private) as lines:
        for line in lines:
            if line.startswith(begins):
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
