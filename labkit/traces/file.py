"""Yield the events of a trace file of unknown origin one by one, and the files of an archive.

A file may be anything: a fragment, a picture, a bomb. No more of it is in memory than one event may
have. Every refusal is one `TraceError`.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from labkit.stamps.plain_file import Unreadable, open_plain, unpack
from labkit.text import one_line

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_SIZE = 2**30  # bytes, unpacked: some 2.5 million events, half a minute of reading
MAX_ARCHIVE = 16 * MAX_SIZE  # of all ranks
MAX_EVENTS = 5_000_000  # twice as many as 1 GiB holds of real ones; empty ones cost 1 s a million
MAX_EVENT = 2**20  # characters of an event, and of what stands before and behind them all
PIECE = 2 * MAX_EVENT  # characters that are read at a time
MAX_MEMBERS = 50_000  # in an archive, whatever they are
MAX_HEADER = 2**16  # bytes of what a tar archive says beyond it

# A JSON value. Numbers stay text: the few that are used are converted with a bound on their size,
# and a timestamp in µs since 1970 with three decimals does not fit a float.
Json: TypeAlias = "JsonObject | list[Json] | str | bool | None"
JsonObject: TypeAlias = "dict[str, Json]"
JSON = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)
HEAD = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # up to the first event
BETWEEN = re.compile(r"[ \t\n\r,]*")
# Kineto has printed these where JSON has no word for the value (a bandwidth over 0 µs, for one).
BARE = re.compile(r"(?<=[:,\[\s])(?:-?(?:nan|inf)|N/A)(?=[\s,}\]])")

EXPORT_AGAIN = "export it again with prof.export_chrome_trace(), and let that finish before copying"
GIVE_A_FILE = (
    "give a file that torch.profiler wrote; where it is too large, profile fewer steps, as with "
    "torch.profiler.schedule(wait=2, warmup=2, active=5)"
)
ONE_PER_RANK = "give one whole .json or .json.gz for each rank, or those of a part of the ranks"
# What the readers of gzip, tar and JSON raise; RuntimeError: nested too deeply
BROKEN = (EOFError, zlib.error, tarfile.TarError, RuntimeError, json.JSONDecodeError)


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, what is wrong and what to do."""


class NotATrace(TraceError):
    """Something other than a profiler trace, which may lie beside traces in a folder."""


class TraceFile:
    """The events of a Chrome trace, at `path` or in an archive's open `member`; iterate once."""

    def __init__(self, path: str | os.PathLike, member: io.BufferedReader | None = None):
        self.path = os.fsdecode(path)
        self.meta: dict[str, Json] = {}  # what it says beside its events, once these are read
        self.member = member

    @property
    def name(self) -> str:
        """The file's own name, as text for one line."""
        return one_line(os.path.basename(self.path))

    def error(self, what: str, remedy: str = EXPORT_AGAIN, kind: type = TraceError) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return kind(f"{self.path!r} {what}: {remedy}.")

    def __iter__(self) -> Iterator[Json]:
        try:
            with unpack(self.member or open_plain(self.path), MAX_SIZE) as plain:
                text = io.TextIOWrapper(plain, "utf-8-sig", errors="replace", newline="")
                for count, event in enumerate(self._events(text)):
                    if count == MAX_EVENTS:
                        raise self.error(f"has more than {MAX_EVENTS:,} events", GIVE_A_FILE)
                    yield event
        except TraceError:
            raise
        except BROKEN as damage:
            raise self.error(f"is damaged or cut short ({damage})") from None
        except Unreadable as why:
            raise self.error(f"is not read: {why}", GIVE_A_FILE) from None
        except (OSError, ValueError) as why:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(why, 'strerror', None) or why})"
            raise self.error(what, "check the path and the permissions") from None

    def _events(self, text: io.TextIOWrapper) -> Iterator[Json]:
        """Decode one event after the other up to the end of their list, then the rest.

        `json.loads` of it all costs ten times the file in memory: a window on the text has what is
        being decoded, at least one event's length.
        """
        window = text.read(PIECE)
        head = HEAD.match(window)
        if not window:
            raise self.error("is empty")
        if head is None:
            what = "is not a profiler trace, which is a list or has a list of 'traceEvents'"
            raise self.error(what, kind=NotATrace)
        position = head.end()
        while True:
            if len(window) - position < MAX_EVENT and (piece := text.read(PIECE)):
                window = window[position:] + piece
                position = 0
            between = BETWEEN.match(window, position)
            position = between.end() if between else position
            if window.startswith("]", position):
                break
            try:
                event, position = JSON.raw_decode(window, position)
            except json.JSONDecodeError:
                mended = BARE.sub("null", window[position:])
                if mended == window[position:]:
                    what = "is cut short, not valid JSON, or has an event of over 1 MiB"
                    raise self.error(what) from None
                window = mended
                position = 0
                continue
            yield event
        rest = window[position:] + text.read(PIECE)
        if text.read(1):
            raise self.error(f"has more than {MAX_EVENT:,} characters behind its events")
        meta = JSON.decode(BARE.sub("null", head.group() + rest))
        if isinstance(meta, dict):
            self.meta = meta


# == a folder or an archive of traces, one for each rank ==


def files_in(path: Path) -> Iterator[TraceFile]:
    """Yield what is named like a trace in a folder or archive; read each before the next."""
    try:
        beside = sorted([*path.glob("*"), *path.glob("*/*")])  # where it is a folder
        folder = ((str(file), None) for file in beside)
        for name, content in folder if path.is_dir() else _archive(path):
            if name.endswith((".json", ".json.gz")) and not os.path.basename(name).startswith("."):
                yield TraceFile(path / name, content)
    except (OSError, *BROKEN) as why:
        what = f"is damaged or cannot be read ({why})"
        raise TraceFile(path).error(what, ONE_PER_RANK) from None


class Header(tarfile.TarInfo):
    """The header of a member in a tar archive, of which Python takes any size into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read it from its first block."""
        header = super().frombuf(buf, encoding, errors)
        if not 0 <= header.size <= (MAX_SIZE if header.isreg() else MAX_HEADER):
            raise Unreadable(f"it has a member of {header.size:,} bytes")
        return header


def _archive(path: Path) -> Iterator[tuple[str, io.BufferedReader]]:
    """Yield name and content of the files in a tar archive; links and devices are passed over."""
    with (
        unpack(open_plain(path), MAX_ARCHIVE) as plain,
        tarfile.open(fileobj=plain, mode="r|", tarinfo=Header) as archive,
    ):
        for number, member in enumerate(archive):
            if number >= MAX_MEMBERS:
                raise Unreadable(f"it has more than {MAX_MEMBERS:,} members")
            if member.isreg():
                stored = cast("io.BufferedReader", archive.extractfile(member))
                yield member.name, stored
