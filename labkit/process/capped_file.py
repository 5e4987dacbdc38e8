"""What a run prints, kept to a bounded size. Standard library only: the supervisor imports this."""

from __future__ import annotations

import contextlib
import os

HEAD_BYTES, TAIL_BYTES = 512 * 1024, 64 * 1024  # kept of each output stream


class CappedFile:
    """Keeps the first half megabyte of a stream as it comes, and its last 64 kB at the end."""

    def __init__(self, path: str):
        try:
            self.file = open(path, "wb", buffering=0)
        except OSError:  # the run is worth more than what it prints
            self.file = open(os.devnull, "wb", buffering=0)
        self.room, self.tail, self.dropped = HEAD_BYTES, b"", 0

    def write(self, data: bytes) -> None:
        """Append `data`; never raises, so that a full disk cannot end a run."""
        head, rest = data[: self.room], data[self.room :]
        with contextlib.suppress(OSError):
            self.file.write(head)
        self.room -= len(head)
        self.dropped += len(rest)
        self.tail = (self.tail + rest)[-TAIL_BYTES:]

    def close(self) -> None:
        """Append the tail, after a line that says how much was left out."""
        with contextlib.suppress(OSError):
            left_out = self.dropped - len(self.tail)
            if left_out > 0:
                self.file.write(f"\n... {left_out} bytes left out ...\n".encode())
            self.file.write(self.tail)
            self.file.close()
