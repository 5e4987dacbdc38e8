"""Yield the events of a trace file of unknown origin one by one, and the files of an archive.

`json.loads` costs ten times a file in memory and three times the time. A file may be anything: a
fragment, a picture, a bomb. Every refusal is one `TraceError`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import math
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

MAX_SIZE = 2 * 2**30  # characters, unpacked: some 5 million events, a minute of reading
# Characters of one event, or before or behind them all; real events, with shapes and stack, have
# 100,000
MAX_VALUE = 2 * 2**20
MAX_EVENTS = 10_000_000  # as many as 2 GiB hold of real ones; empty ones cost 1 s a million
CHUNK = 2**19  # characters read at a time
# Real traces pack to a thirtieth, a bomb to a thousandth; so small a text as `ROOM` may be either
MAX_RATIO = 200
ROOM = 2**21
MAX_MEMBERS = 4_096  # of an archive or a folder: a file for each rank of a job
TAR_BLOCK = 512  # bytes: the header of a member

# A JSON value. Numbers stay text: the few that are used are converted with a bound on their size,
# and a timestamp in µs since 1970 with three decimals does not fit a float.
Json: TypeAlias = "JsonObject | list[Json] | str | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"
_JSON = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
_HEAD = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # up to the first event
_BETWEEN = re.compile(r"[ \t\n\r,]*")
# Kineto has printed these where JSON has no word for the value (a bandwidth over 0 µs, for one).
_BARE = re.compile(r"(?<=[:,\[\s])(?:-?(?:nan|inf)|N/A)(?=[\s,}\]])")

EXPORT_AGAIN = "export it again with prof.export_chrome_trace(), and let that finish before copying"
PROFILE_LESS = "profile fewer steps, as with torch.profiler.schedule(wait=2, warmup=2, active=5)"
ONE_PER_RANK = "give one .json or .json.gz for each rank"
BOMB = f"unpacks to more than {MAX_RATIO} times its size, as no trace does"
# What the readers of gzip, xz, tar, zip and JSON raise; RuntimeError: nested too deeply
BROKEN = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    RuntimeError,
    json.JSONDecodeError,
)


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, what is wrong and what to do."""


class NotATrace(TraceError):
    """Something other than a profiler trace, which may lie beside traces in a folder."""


class TraceFile:
    """The events of a Chrome trace, at `path` or where `member` opens an archive; iterate once."""

    def __init__(self, path: str | os.PathLike, member: Callable[[], IO[bytes]] | None = None):
        self.path = os.fsdecode(path)
        self.meta: dict[str, Json] = {}  # what it says beside its events, once these are read
        self.notes: list[str] = []  # what was repaired on the way, as sentences
        self._member = member
        self._text = ""  # the window
        self._position = 0  # up to where the window has been read
        self._before = 0  # characters of the file before the window

    def error(self, what: str, remedy: str = EXPORT_AGAIN, kind: type = TraceError) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return kind(f"{self.path!r} {what}: {remedy}.")

    @property
    def size(self) -> int:
        """Characters read so far."""
        return self._before + len(self._text)

    def __iter__(self) -> Iterator[Json]:
        try:
            if not (self._member or stat.S_ISREG(os.stat(self.path).st_mode)):
                # a pipe or a device would block, or never end
                raise self.error("is not a regular file", "give the path of a trace file")
            with self._member() if self._member else open(self.path, "rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"  # the name may lie, these bytes do not
                raw.seek(0)
                self._packed = raw if packed else None
                plain = gzip.GzipFile(fileobj=raw) if packed else raw
                self._stream = io.TextIOWrapper(plain, "utf-8-sig", errors="replace", newline="")
                head = self._read_head()
                yield from self._read_events()
                while self._read_more():
                    pass
                around = head + self._text[self._position :]
                meta = _JSON.decode(_BARE.sub("null", around))
                if isinstance(meta, dict):
                    self.meta = meta
        except TraceError:
            raise
        except BROKEN as damage:
            raise self.error(f"is damaged or cut short ({damage})") from None
        except (OSError, ValueError) as why:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(why, 'strerror', None) or why})"
            raise self.error(what, "check the path and the permissions") from None

    def _read_head(self) -> str:
        """Step over what stands before the first event, and return it."""
        while not (head := _HEAD.match(self._text)):
            if len(self._text) < MAX_VALUE and self._read_more():
                continue
            if not self._text:
                raise self.error("is empty")
            what = "is not a profiler trace, which is a list or has a list of 'traceEvents'"
            raise self.error(what, kind=NotATrace)
        self._position = head.end()
        return head.group()

    def _read_events(self) -> Iterator[Json]:
        """Decode one event after the other, up to the end of their list."""
        count = 0
        while True:
            between = _BETWEEN.match(self._text, self._position)
            self._position = between.end() if between else self._position
            if self._text.startswith("]", self._position):
                return
            try:
                event, end = _JSON.raw_decode(self._text, self._position)
            except json.JSONDecodeError as fault:
                self._mend(fault.pos)
                continue
            if end == len(self._text):  # a number there may go on beyond the window
                self._mend(end)
                continue
            count += 1
            if count > MAX_EVENTS:
                raise self.error(f"has more than {MAX_EVENTS:,} events", PROFILE_LESS)
            self._position = end
            yield event

    def _mend(self, at: int) -> None:
        """Put null for a word that JSON lacks; else get more text, in case that is what lacks."""
        place = self._before + at
        if _BARE.match(self._text, at):
            before = max(self._position - 1, 0)  # the pattern looks at the character before, too
            self._text = self._text[:before] + _BARE.sub("null", self._text[before:])
        elif not self._read_more():
            raise self.error(f"is cut short, or not valid JSON, near character {place:,}")

    def _read_more(self) -> bool:
        """Drop the text already read and add to the rest; return False at the end of the file."""
        rest = self._text[self._position :]
        if len(rest) >= MAX_VALUE:
            place = self._before + self._position
            raise self.error(f"has no whole event in {MAX_VALUE:,} characters from {place:,} on")
        # Doubling keeps the cost of decoding a long event again and again linear.
        piece = self._stream.read(max(CHUNK, len(rest)))
        if "\ufffd" in piece:
            self.notes.append("Text that is not UTF-8 was replaced by question marks.")
        self._before += self._position
        self._text = rest + piece
        self._position = 0
        if self._packed and self.size > most_unpacked(self._packed.tell()):
            raise self.error(BOMB)
        if self.size > MAX_SIZE:
            raise self.error(f"is larger than {MAX_SIZE / 2**30:g} GiB uncompressed", PROFILE_LESS)
        return bool(piece)


def most_unpacked(packed: int) -> float:
    """Return the most characters that so many packed bytes may hold."""
    return ROOM + MAX_RATIO * packed


# == a folder or an archive of traces, one for each rank ==


def packing(path: str | os.PathLike) -> str:
    """Return "folder", "zip" or "tar" by the first bytes of `path`, and "" of a single file."""
    if not os.path.isfile(path):
        return "folder" if os.path.isdir(path) else ""
    start = b""
    for unpacked in (open, gzip.open):
        # what is neither is read as one trace, which says what is wrong
        with contextlib.suppress(OSError, *BROKEN), unpacked(path, "rb") as raw:
            start = raw.read(TAR_BLOCK)
    if start.startswith(b"PK\3\4"):
        return "zip"
    return "tar" if start[257:262] == b"ustar" else ""


def files_in(path: Path, kind: str) -> Iterator[TraceFile]:
    """Yield what may be a trace in a folder or archive; read each before asking for the next."""
    whole = TraceFile(path)
    most = math.inf if kind == "folder" else most_unpacked(os.stat(path).st_size)
    members = {"folder": _in_folder, "zip": _in_zip, "tar": _in_tar}[kind]
    unpacked = 0
    number = 0
    try:
        for file, size in members(path):
            unpacked += size
            if unpacked > most:
                raise whole.error(BOMB, "pack the traces again")
            name = os.path.basename(file.path)
            if not name.endswith((".json", ".json.gz")) or name.startswith("."):
                continue
            number += 1
            if number > MAX_MEMBERS:
                what = f"holds more than {MAX_MEMBERS:,} files named like a trace"
                raise whole.error(what, ONE_PER_RANK)
            yield file
            unpacked += max(0, file.size - size)  # it was packed itself
    except (OSError, *BROKEN) as why:
        what = f"is damaged or cannot be read ({why})"
        raise whole.error(what, "copy it again") from None


# Each yields files, not yet opened, and the bytes that each takes unpacked.


def _in_folder(path: Path) -> Iterator[tuple[TraceFile, int]]:
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        yield TraceFile(file), 0


def _in_zip(path: Path) -> Iterator[tuple[TraceFile, int]]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            yield (
                TraceFile(path / name, partial(archive.open, name)),
                archive.getinfo(name).file_size,
            )


def _in_tar(path: Path) -> Iterator[tuple[TraceFile, int]]:
    with tarfile.open(path) as archive:
        for member in archive:  # in its order: to go back is to unpack it again
            name = member.name if member.isfile() else ""
            file = TraceFile(path / name, partial(_opened, archive, member))
            yield file, TAR_BLOCK + member.size


def _opened(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    return io.BytesIO() if content is None else content  # a folder or a device has no content
