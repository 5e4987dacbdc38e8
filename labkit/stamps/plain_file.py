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
GZIP = b"\x1f\x8b"  # a gzip file begins so, whatever its name says
WITH_GZIP_HEADER = 31  # for zlib
BROKEN = (OSError, EOFError, zlib.error)  # what reading one raises


class Unreadable(OSError):
    """A file that is not read, or no further; the message says why, without the file's name."""


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a plain file to read, without waiting for anybody; OSError where it is another kind."""
    file = open(path, "rb", opener=_without_waiting)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable("it is not a regular file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def unpacked(path: str | os.PathLike[str], most: int) -> io.BufferedReader:
    """Open a plain file to read what it holds now, unpacked, which is at most `most` bytes."""
    file = opened(path)
    return io.BufferedReader(Unpacked(file, os.fstat(file.fileno()).st_size, most), PIECE)


class Unpacked(io.RawIOBase):
    """The next `size` bytes of a stream, unpacked where they are gzip; at most `most` of them."""

    def __init__(self, stream: io.BufferedReader, size: int, most: int):
        """Read `stream` from where it is; it is closed with this."""
        self._stream = stream
        self._left = size
        self._most = most
        self._read = self._given = 0  # bytes
        self._is_packed = size > len(GZIP) and stream.peek(len(GZIP)).startswith(GZIP)
        self._inflate = zlib.decompressobj(WITH_GZIP_HEADER)
        if size > most and not self._is_packed:
            raise self._too_large()

    def _too_large(self) -> Unreadable:
        return Unreadable(f"it is larger than {self._most / 2**20:,.0f} MiB")

    def readable(self) -> bool:
        """Return True: it can be read from the front, once."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer, as RawIOBase asks for it."""
        room = memoryview(buffer)
        piece = self._inflated(len(room)) if self._is_packed else self._stored(len(room))
        room[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the stream too."""
        self._stream.close()
        super().close()

    def _stored(self, most: int) -> bytes:
        """Return the next bytes as they are stored; of a file that was cut short b""."""
        piece = self._stream.read(min(most, self._left))
        self._left -= len(piece)
        self._read += len(piece)
        return piece

    def _inflated(self, most: int) -> bytes:
        """Return the next bytes that they unpack to; b"" at the end."""
        inflate = self._inflate
        piece = b""
        while not piece and not inflate.eof:
            packed = inflate.unconsumed_tail or self._stored(PACKED_PIECE)
            piece = inflate.decompress(packed, most)
            if not packed and not piece:
                raise EOFError("it is cut short")
        self._given += len(piece)
        if self._given > self._most:
            raise self._too_large()
        if self._given > MAX_RATIO * self._read:
            raise Unreadable(f"it unpacks to more than {MAX_RATIO} times its size")
        if inflate.eof and (inflate.unused_data + self._stored(1)).strip(b"\0"):
            raise Unreadable("it is several gzip files in one")
        return piece
