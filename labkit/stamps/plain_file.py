"""Reading a file that may be anybody's: a plain file alone, and no more than is allowed of it.

A pipe would block and a device never end; a gzip file may unpack to a thousand times its size.
Nothing here reads more than a piece at a time.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE = 2**18  # bytes read at a time
PACKED_PIECE = 2**14  # and of what may unpack to many times as much
MAX_RATIO = 200  # real traces pack to a thirtieth, a bomb to a thousandth
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
GZIP = b"\x1f\x8b"  # a gzip file begins so, whatever its name says
WITH_GZIP_HEADER = 31  # for zlib
BROKEN = (OSError, EOFError, zlib.error)  # what reading one raises


class Unreadable(OSError):
    """A file that is not read, or no further; the message says why, without the file's name."""


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a plain file to read, without waiting for anybody; OSError where it is another kind."""
    file = open(path, "rb", opener=lambda path, flags: os.open(path, flags | NO_WAIT))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable("it is not a regular file")
    return file


def unpacked(path: str | os.PathLike[str], most: int) -> io.BufferedReader:
    """Open a plain file to read what it holds, unpacked, which is at most `most` bytes."""
    file = opened(path)
    return io.BufferedReader(Unpacked(file, os.fstat(file.fileno()).st_size, most), PIECE)


class Unpacked(io.RawIOBase):
    """A stream of `size` bytes, unpacked where they are gzip; at most `most` come out of it."""

    def __init__(self, stream: io.BufferedReader, size: int, most: int):
        """Read `stream` from its start; it is closed with this."""
        self._stream = stream
        self._most = most
        self._given = 0  # bytes
        is_packed = stream.peek(len(GZIP)).startswith(GZIP)
        self._inflate = zlib.decompressobj(WITH_GZIP_HEADER) if is_packed else None
        if size > most and not is_packed:
            raise self._too_large()

    def _too_large(self) -> Unreadable:
        return Unreadable(f"it is larger than {self._most / 2**20:,.0f} MiB")

    def readable(self) -> bool:
        """Return True: it can be read from the front, once."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer, as RawIOBase asks for it."""
        room = memoryview(buffer)
        inflate = self._inflate
        piece = self._inflated(inflate, len(room)) if inflate else self._stream.read(len(room))
        self._given += len(piece)
        if self._given > self._most:
            raise self._too_large()
        if inflate and self._given > MAX_RATIO * self._stream.tell():
            raise Unreadable(f"it unpacks to more than {MAX_RATIO} times its size")
        room[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the stream too."""
        self._stream.close()
        super().close()

    def _inflated(self, inflate: zlib._Decompress, most: int) -> bytes:
        """Return the next bytes that they unpack to; b"" at the end."""
        piece = b""
        while not piece and not inflate.eof:
            packed = inflate.unconsumed_tail or self._stream.read(PACKED_PIECE)
            piece = inflate.decompress(packed, most)
            if not packed and not piece:
                raise EOFError("it is cut short")
        if inflate.eof and (inflate.unused_data + self._stream.read(1)).strip(b"\0"):
            raise Unreadable("it is several gzip files in one")
        return piece
