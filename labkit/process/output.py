"""What a run's bench prints, on its way into files of a bounded size. Standard library only."""

from __future__ import annotations

import contextlib
import os

from labkit.stamps.events import private
from labkit.stamps.keys import masked, secrets_in

HEAD_BYTES = 512 * 1024  # kept of what the bench prints: its beginning
TAIL_BYTES = 64 * 1024  # and its end
LONGEST_LINE = 64 * 1024  # bytes that wait for its end


class Output:
    """A file for what a pipe gives: the first half megabyte at once, the last 64 kB later.

    Secrets are masked line by line: what is no whole line yet waits for the rest of it.
    """

    def __init__(self, fd: int, path: str):
        self.fd = fd
        self.room = HEAD_BYTES
        self.tail = bytearray()
        self.left_out = 0
        self.file = open(path, "wb", buffering=0, opener=private)
        self.secrets = secrets_in(os.environ)
        self.waiting = b""

    def read(self) -> bytes:
        """Take what is there; b"" where nothing is, or nothing will come."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 65536)
        self.waiting += data
        whole = max(self.waiting.rfind(end) for end in (b"\n", b"\r")) + 1
        if not whole and len(self.waiting) > LONGEST_LINE:
            whole = len(self.waiting)
        self._keep(self.waiting[:whole])
        self.waiting = self.waiting[whole:]
        return data

    def _masked(self, lines: bytes) -> bytes:
        text = masked(lines.decode(errors="surrogateescape"), self.secrets)
        return text.encode(errors="surrogateescape")

    def _keep(self, data: bytes) -> None:
        if self.room:  # the tail is masked at the end: of much output it is all that stays
            data = self._masked(data)
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
        tail = bytes(self.tail)
        note = ""
        if self.left_out:
            tail = tail[tail.find(b"\n") + 1 :]  # what is cut is not known for a secret
            note = f"\n... {self.left_out} bytes and the rest of a line left out ...\n"
        with contextlib.suppress(OSError):
            self.file.write(note.encode() + self._masked(tail))
        self.file.close()
