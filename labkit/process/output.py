"""What a run's bench prints, on its way into files of a bounded size. Standard library only."""

from __future__ import annotations

import contextlib
import os

from labkit.process.events import private
from labkit.process.keys import MASK, keys_in

HEAD_BYTES = 512 * 1024  # kept of what the bench prints: its beginning
TAIL_BYTES = 64 * 1024  # and its end


class Output:
    """A file for what a pipe gives: the first half megabyte at once, the last 64 kB later.

    Keys in the environment are masked. What may be the front of one waits for the rest of it.
    """

    def __init__(self, fd: int, path: str):
        self.fd = fd
        self.room = HEAD_BYTES
        self.tail = bytearray()
        self.left_out = 0
        self.file = open(path, "wb", buffering=0, opener=private)
        self.keys = [os.fsencode(key) for key in keys_in(os.environ)]
        self.longest_front = max(map(len, self.keys), default=1) - 1
        self.waiting = b""

    def read(self) -> bytes:
        """Take what is there; b"" where nothing is, or nothing will come."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 65536)
        text = self.waiting + data
        for key in self.keys:
            text = text.replace(key, MASK.encode())
        kept = max(0, len(text) - self.longest_front)
        self.waiting = text[kept:]
        self._keep(text[:kept])
        return data

    def _keep(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk
            self.file.write(data[: self.room])
        self.tail += data[self.room :]
        self.room = max(0, self.room - len(data))
        self.left_out += max(0, len(self.tail) - TAIL_BYTES)
        del self.tail[:-TAIL_BYTES]

    def read_all(self) -> None:
        """Take what comes until nothing does."""
        while self.read():
            pass

    def finish(self) -> None:
        """Add the tail after a line that says how much was left out."""
        self._keep(self.waiting)
        note = f"\n... {self.left_out} bytes left out ...\n" if self.left_out else ""
        with contextlib.suppress(OSError):
            self.file.write(note.encode() + self.tail)
        self.file.close()
