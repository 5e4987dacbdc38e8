"""What a run's bench prints, on its way into files of a bounded size. Standard library only."""

from __future__ import annotations

import contextlib
import os

from labkit.stamps.events import private
from labkit.stamps.keys import masked, secrets_in

HEAD_BYTES = 512 * 1024  # kept of what the bench prints: its beginning
TAIL_BYTES = 64 * 1024  # and its end


class Output:
    """What comes through a pipe, to be written into a file once its end is known."""

    def __init__(self, fd: int, path: str):
        self.fd = fd
        self.path = path
        self.data = bytearray()  # the beginning and the end of it
        self.left_out = 0  # bytes between them

    def read(self) -> bytes:
        """Take what is there; b"" where nothing is, or nothing will come."""
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 65536)
        self.data += data
        surplus = max(0, len(self.data) - HEAD_BYTES - TAIL_BYTES)
        del self.data[HEAD_BYTES : HEAD_BYTES + surplus]
        self.left_out += surplus
        return data

    def read_all(self) -> None:
        """Take what comes until nothing does."""
        while self.read():
            pass

    def finish(self) -> None:
        """Write the file without secrets; a line tells how much was left out."""
        said = bytes(self.data)
        if self.left_out:  # whole lines only: a part of a secret is not known for one
            head = said[: said.rfind(b"\n", 0, HEAD_BYTES) + 1]
            tail = said[said.find(b"\n", HEAD_BYTES) + 1 :]
            said = head + b"... %d bytes and more left out ...\n" % self.left_out + tail
        text = masked(said.decode(errors="surrogateescape"), secrets_in(os.environ))
        with (
            contextlib.suppress(OSError),  # a full disk
            open(self.path, "wb", opener=private) as file,
        ):
            file.write(text.encode(errors="surrogateescape"))
