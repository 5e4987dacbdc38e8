"""Reading a file that may be anybody's: a plain file alone, and no more than is allowed of it.

A pipe would block and a device never end; a gzip file may unpack to a thousand times its size.
Nothing here reads more than a piece at a time.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE = 2**18  # bytes read at a time
MAX_RATIO = 200  # real traces pack to a thirtieth, a bomb to a thousandth
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
GZIP = b"\x1f\x8b"  # a gzip file begins so, whatever its name says
BROKEN = (OSError, EOFError, zlib.error)  # what reading one raises


class Unreadable(OSError):
    """A file that is not read, or no further; the message says why, without the file's name."""


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a plain file to read, without waiting for anybody; OSError where it is another kind."""
    file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | NO_WAIT))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable("it is not a regular file")
    return file


def unpack(stream: io.BufferedReader, most: int) -> io.BufferedReader:
    """Return what a stream holds, unpacked where it is gzip; `most` bytes come out of it.

    Where it has more, reading raises Unreadable. The stream is closed with it.
    """
    return io.BufferedReader(Unpacked(stream, most), PIECE)


class Unpacked(io.RawIOBase):
    """The bytes that `unpack` buffers."""

    def __init__(self, stream: io.BufferedReader, most: int):
        self._stream = stream
        self._most = most
        self._given = 0  # bytes
        is_packed = stream.peek(len(GZIP)).startswith(GZIP)
        self._plain = gzip.GzipFile(fileobj=stream) if is_packed else stream

    def readable(self) -> bool:
        """Return True: it can be read from the front, once."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer, as RawIOBase asks for it."""
        count = self._plain.readinto(buffer)
        self._given += count
        if self._given > self._most:
            raise Unreadable(f"it is larger than {self._most / 2**20:,.0f} MiB")
        if self._given > MAX_RATIO * self._stream.tell():
            raise Unreadable(f"it unpacks to more than {MAX_RATIO} times its size")
        return count

    def close(self) -> None:
        """Close the stream too."""
        self._stream.close()
        super().close()
