"""The event log: one JSON object per line, one `write()` per line, nothing ever rewritten.

Several processes append to the same file with O_APPEND: a kill can cost at most the line being
written, which readers ignore. `t_ns` is on `time.perf_counter_ns`, which on Linux, macOS and
Windows is one monotonic clock for all processes of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

VERSION = 1
FILE_NAME = "events.jsonl"
SPEC_NAME = "spec.json"  # what the bench is asked to do
RESERVE_NAME, RESERVE_BYTES = "reserve", 256 * 1024  # given up when the disk is full
MOST_KEPT = 4 * 2**20  # bytes that wait for room on a full disk

now_ns = time.perf_counter_ns


class EventLog:
    """An append-only event file that never raises once open; what a full disk refuses waits."""

    def __init__(self, folder: str | Path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(os.path.join(folder, FILE_NAME), flags, 0o644)
        self._reserve = os.path.join(folder, RESERVE_NAME)
        self._kept = b""
        self.error: OSError | None = None

    def write(self, event: str, **values: Any) -> None:
        """Append one event, stamped now."""
        line = {"event": event, "t_ns": now_ns(), **values}
        self.write_line(json.dumps(line, separators=(",", ":"), allow_nan=False, default=str))

    def stage(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Write what the run is busy with before it measures, and how far that is."""
        self.write("stage", name=name, done=done, total=total)

    def write_line(self, line: str) -> None:
        """Append one finished line of JSON, or several."""
        if self._fd >= 0:
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
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.error = error
            whole = data.rfind(b"\n", 0, written) + 1
            return (b"\n" if whole < written else b"") + data[whole:]
        return b""

    def close(self) -> None:
        """Let go of the file; what is written later is lost, and nothing else happens."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
