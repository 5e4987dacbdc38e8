"""The event log: one JSON object per line, one `write()` per line, nothing ever rewritten.

Several processes (bench, telemetry, supervisor, launcher) append to the same file with O_APPEND,
so a kill at any moment can cost at most the line being written, which readers ignore.

Every event has `event` (its name) and `t_ns`: nanoseconds on `time.perf_counter_ns`, which on
Linux, macOS and Windows is one monotonic clock for all processes of the machine.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VERSION = 1
FILE_NAME = "events.jsonl"

now_ns = time.perf_counter_ns


class EventLog:
    """An append-only event file. Never raises once open: a full disk must not end a run."""

    def __init__(self, folder: str | Path):
        """Open (or create) the log in `folder`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._fd = os.open(os.path.join(folder, FILE_NAME), flags, 0o644)
        self.lost = 0

    def write(self, event: str, **values: Any) -> None:
        """Append one event, stamped now."""
        line = {"event": event, "t_ns": now_ns(), **values}
        self.write_line(json.dumps(line, separators=(",", ":"), allow_nan=False, default=str))

    def write_line(self, line: str) -> None:
        """Append one finished line of JSON:."""
        try:
            os.write(self._fd, f"{line}\n".encode())
        except OSError:  # disk full: what was written before still stands
            self.lost += 1

    def close(self) -> None:
        """Let go of the file; what is written later is lost, and nothing else happens."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
