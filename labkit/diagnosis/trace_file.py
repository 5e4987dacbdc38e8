"""Yield the events of a trace file of unknown origin one by one, and the files of an archive.

`json.loads` costs ten times a file in memory. A file may be anything: a fragment, a picture, a
bomb. Every refusal is one `TraceError`.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeAlias

MAX_SIZE = 2**30  # characters, unpacked: some 2.5 million events, half a minute of reading
MAX_EVENTS = 5_000_000  # twice as many as 1 GiB holds of real ones; empty ones cost 1 s a million
CHUNK = 2**20  # characters unpacked at a time
# Real traces pack to a thirtieth, a bomb to a thousandth; so small a text as `ROOM` may be either
MAX_RATIO = 200
ROOM = 2**21
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
# What the readers of gzip, tar (with xz, too) and JSON raise; RuntimeError: nested too deeply
BROKEN = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    RuntimeError,
    json.JSONDecodeError,
)


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, what is wrong and what to do."""


class NotATrace(TraceError):
    """Something other than a profiler trace, which may lie beside traces in a folder."""


class TraceFile:
    """The events of a Chrome trace, at `path` or in an archive's open `member`; iterate once."""

    def __init__(self, path: str | os.PathLike, member: IO[bytes] | None = None):
        self.path = os.fsdecode(path)
        self.meta: dict[str, Json] = {}  # what it says beside its events, once these are read
        self.notes: list[str] = []  # what was repaired on the way, as sentences
        self._member = member

    def error(self, what: str, remedy: str = EXPORT_AGAIN, kind: type = TraceError) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return kind(f"{self.path!r} {what}: {remedy}.")

    def __iter__(self) -> Iterator[Json]:
        try:
            yield from self._events(self._unpacked())
        except TraceError:
            raise
        except BROKEN as damage:
            raise self.error(f"is damaged or cut short ({damage})") from None
        except (OSError, ValueError) as why:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(why, 'strerror', None) or why})"
            raise self.error(what, "check the path and the permissions") from None

    def _unpacked(self) -> str:
        """Return the text of the file."""
        if not (self._member or stat.S_ISREG(os.stat(self.path).st_mode)):
            # a pipe or a device would block, or never end
            raise self.error("is not a regular file", "give the path of a trace file")
        pieces = []
        size = 0
        with self._member or open(self.path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"  # the name may lie, these bytes do not
            raw.seek(0)
            plain = gzip.GzipFile(fileobj=raw) if packed else raw
            text = io.TextIOWrapper(plain, "utf-8-sig", errors="replace", newline="")
            while piece := text.read(CHUNK):
                pieces.append(piece)
                size += len(piece)
                if packed and size > most_unpacked(raw.tell()):
                    raise self.error(BOMB)
                if size > MAX_SIZE:
                    what = f"is larger than {MAX_SIZE / 2**30:g} GiB uncompressed"
                    raise self.error(what, PROFILE_LESS)
        return "".join(pieces)

    def _events(self, text: str) -> Iterator[Json]:
        """Decode one event after the other up to the end of their list, then the rest."""
        if "\ufffd" in text:
            self.notes.append("Text that is not UTF-8 was replaced by question marks.")
        head = _HEAD.match(text)
        if head is None and text:
            what = "is not a profiler trace, which is a list or has a list of 'traceEvents'"
            raise self.error(what, kind=NotATrace)
        if head is None:
            raise self.error("is empty")
        position = head.end()
        mended = False
        count = 0
        while True:
            between = _BETWEEN.match(text, position)
            position = between.end() if between else position
            if text.startswith("]", position):
                break
            try:
                event, position = _JSON.raw_decode(text, position)
            except json.JSONDecodeError as fault:
                if mended or not _BARE.match(text, fault.pos):
                    what = f"is cut short, or not valid JSON, near character {fault.pos:,}"
                    raise self.error(what) from None
                text = text[:position] + _BARE.sub("null", text[position:])
                mended = True
                continue
            count += 1
            if count > MAX_EVENTS:
                raise self.error(f"has more than {MAX_EVENTS:,} events", PROFILE_LESS)
            yield event
        meta = _JSON.decode(_BARE.sub("null", head.group() + text[position:]))
        if isinstance(meta, dict):
            self.meta = meta


def most_unpacked(packed: int) -> int:
    """Return the most characters that this many packed bytes may hold."""
    return ROOM + MAX_RATIO * packed


# == a folder or an archive of traces, one for each rank ==


def holds_several(path: str | os.PathLike) -> bool:
    """Return whether `path` is a folder or a tar archive; all else is read as one trace."""
    try:
        return os.path.isdir(path) or (os.path.isfile(path) and tarfile.is_tarfile(path))
    except (OSError, *BROKEN):
        return False


def files_in(path: Path) -> Iterator[TraceFile]:
    """Yield what is named like a trace in a folder or archive; read each before the next."""
    if path.is_dir():
        for file in sorted([*path.glob("*"), *path.glob("*/*")]):
            if _is_named_like_a_trace(file.name):
                yield TraceFile(file)
        return
    whole = TraceFile(path)
    left = most_unpacked(os.stat(path).st_size)
    try:
        with tarfile.open(path) as archive:
            for member in archive:  # in its order: to go back is to unpack it again
                left -= TAR_BLOCK + member.size
                if left < 0:
                    raise whole.error(BOMB, "pack the traces again")
                content = archive.extractfile(member)
                if content is not None and _is_named_like_a_trace(os.path.basename(member.name)):
                    yield TraceFile(path / member.name, content)
    except (OSError, *BROKEN) as why:
        what = f"is damaged or cannot be read ({why})"
        raise whole.error(what, "copy it again") from None


def _is_named_like_a_trace(name: str) -> bool:
    return name.endswith((".json", ".json.gz")) and not name.startswith(".")
