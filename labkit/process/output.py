"""What a run's bench prints, on its way into files of a bounded size. Standard library only."""

from __future__ import annotations

import contextlib
import os

from labkit.stamps.events import private
from labkit.stamps.keys import masked, secrets_in

MOST_BYTES = 512 * 1024  # kept of what the bench prints: its end


def read_now(fd: int) -> bytes | None:
    """Return what a pipe holds; None where it is empty now, b"" where nothing will come."""
    with contextlib.suppress(OSError):
        return os.read(fd, 65536)
    return None


class Output:
    """What comes through a pipe, to be written into a file once its end is known."""

    def __init__(self, fd: int, path: str):
        self.fd = fd
        self.path = path
        self.data = bytearray()  # the end of it
        self.is_cut = False  # whether there was more before that

    def read(self) -> bytes | None:
        """Take what is there, and return it; as `read_now` does."""
        data = read_now(self.fd)
        self.data += data or b""
        surplus = max(0, len(self.data) - MOST_BYTES)
        del self.data[:surplus]
        self.is_cut |= surplus > 0
        return data

    def finish(self) -> None:
        """Take what is left, and write the file without secrets; it says if some is left out."""
        while self.read():
            pass
        text = self.data.decode(errors="surrogateescape")
        if self.is_cut:  # whole lines only: a part of a secret is not known for one
            _, _, whole = text.partition("\n")
            text = f"... more was left out ...\n{whole}"
        said = masked(text, secrets_in(os.environ)).encode(errors="surrogateescape")
        with contextlib.suppress(OSError), open(self.path, "wb", opener=private) as file:
            file.write(said)  # but on a full disk
