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
from io import FileIO
from pathlib import Path
from typing import Any

from labkit.stamps.folder_rights import private
from labkit.stamps.interrupts import signal_of
from labkit.stamps.keys import mask_secrets, secrets_in
from labkit.text import with_texts

VERSION = 2
FILE_NAME = "events.jsonl"
SPEC_NAME = "spec.json"  # what the bench is asked to do
XRAY_NAME = "xray.json.gz"  # the trace of the profiled steps
# What an event may hold of somebody else's: errors, why something is missing, measured values
FREE_TEXTS = {"message", "traceback", "why", "error", "text", "line", "values", "points"}

now_ns = time.perf_counter_ns


class EventLog:
    """An append-only event file that never raises once open; what a full disk refuses is lost.

    Secrets are masked in the texts of an event that somebody else wrote. It is of the process that
    makes it: one that is forked from that writes nothing. The file is open only while it is
    written, as a program may close or count the descriptors that it has.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self._pid: int | None = os.getpid()
        self._secrets = secrets_in(os.environ)
        self.error: OSError | None = None  # why something was lost
        self._open().close()

    def _open(self) -> FileIO:
        return open(self._folder / FILE_NAME, "ab", buffering=0, opener=private)

    def write(self, event: str, **values: object) -> None:
        """Append one event, stamped now."""
        told = {
            name: with_texts(values[name], lambda text: mask_secrets(text, self._secrets))
            for name in FREE_TEXTS & values.keys()
        }
        line = {"event": event, "t_ns": now_ns(), **values, **told}
        self.write_line(json.dumps(line, separators=(",", ":"), allow_nan=False, default=str))

    def stage(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Write what the run is busy with before it measures, and how far that is."""
        self.write("stage", name=name, done=done, total=total)

    def write_line(self, line: str) -> None:
        """Append one finished line of JSON, or several."""
        if self._pid != os.getpid():
            return
        data = f"{line}\n".encode()
        try:
            with self._open() as file:
                while data:
                    data = data[file.write(data) :]
        except OSError as error:
            if signal_of(error) is not None:
                raise
            self.error = error

    def close(self) -> None:
        """End the log for this process; what is written later is lost, and nothing else happens."""
        self._pid = None


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
