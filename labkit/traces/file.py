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
from typing import TypeAlias

from labkit.results.plain_file import Unpacked, Unreadable, unpacked
from labkit.results.text import one_line

MAX_SIZE = 2**30  # bytes, unpacked: some 2.5 million events, half a minute of reading
MAX_ARCHIVE = 16 * MAX_SIZE  # of all ranks
MAX_EVENTS = 5_000_000  # twice as many as 1 GiB holds of real ones; empty ones cost 1 s a million
MAX_EVENT = 2**20  # characters of an event, and of what stands before and behind them all
SHORT_EVENTS = 100_000  # that may have fewer characters than
LEAST_EVENT = 64  # a real one
MAX_TRACES = 1_024  # in a folder or an archive, one for each rank
MAX_MEMBERS = 50_000  # in an archive, whatever they are
TAR_BLOCK = 512  # bytes: the header of a member
MAX_HEADER = 2**16  # bytes of what a tar archive says beyond it
# What stands before a member whose name is longer, {its type: the name in it}
LONG_NAMES = {
    tarfile.GNUTYPE_LONGNAME: re.compile(r"([^\0]+)"),
    tarfile.XHDTYPE: re.compile(r"(?:^|\n)\d+ path=([^\n]+)"),
}

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
GIVE_A_FILE = f"give a file that torch.profiler wrote; where it is too large, {PROFILE_LESS}"
ONE_PER_RANK = "give one .json or .json.gz for each rank"
FEWER_RANKS = "give those of a part of the ranks"
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
        self.notes: list[str] = []  # what was repaired on the way, as sentences
        self._member = member

    @property
    def name(self) -> str:
        """The file's own name, as text for one line."""
        return one_line(os.path.basename(self.path))

    def error(self, what: str, remedy: str = EXPORT_AGAIN, kind: type = TraceError) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return kind(f"{self.path!r} {what}: {remedy}.")

    def __iter__(self) -> Iterator[Json]:
        try:
            with self._member or unpacked(self.path, MAX_SIZE) as plain:
                yield from self._events(Window(plain))
        except TraceError:
            raise
        except BROKEN as damage:
            raise self.error(f"is damaged or cut short ({damage})") from None
        except Unreadable as why:
            raise self.error(f"is not read: {why}", GIVE_A_FILE) from None
        except (OSError, ValueError) as why:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(why, 'strerror', None) or why})"
            raise self.error(what, "check the path and the permissions") from None

    def _events(self, window: Window) -> Iterator[Json]:
        """Decode one event after the other up to the end of their list, then the rest."""
        window.look_ahead()
        head = _HEAD.match(window.text)
        if head is None and window.text:
            what = "is not a profiler trace, which is a list or has a list of 'traceEvents'"
            raise self.error(what, kind=NotATrace)
        if head is None:
            raise self.error("is empty")
        window.position = head.end()
        for count, event in enumerate(self._decoded(window), 1):
            if count > min(MAX_EVENTS, SHORT_EVENTS + window.characters / LEAST_EVENT):
                what = f"has more than {MAX_EVENTS:,} events, or most of them are empty"
                raise self.error(what, PROFILE_LESS)
            yield event
        if window.look_ahead():
            raise self.error(f"has more than {MAX_EVENT:,} characters behind its events")
        rest = window.text[window.position :]
        meta = _JSON.decode(_BARE.sub("null", head.group() + rest))
        if isinstance(meta, dict):
            self.meta = meta
        if window.is_mended:
            self.notes.append("Text that is not UTF-8 was replaced by question marks.")

    def _decoded(self, window: Window) -> Iterator[Json]:
        """Yield the events up to the bracket behind them."""
        while True:
            window.look_ahead()
            between = _BETWEEN.match(window.text, window.position)
            start = between.end() if between else window.position
            if window.text.startswith("]", start):
                window.position = start
                return
            try:
                event, window.position = _JSON.raw_decode(window.text, start)
            except json.JSONDecodeError as fault:
                if not (_BARE.match(window.text, fault.pos) and window.mend(start)):
                    what = "is cut short, not valid JSON, or has an event of over 1 MiB"
                    near = window.characters - len(window.text) + fault.pos
                    raise self.error(f"{what}, near character {near:,}") from None
                continue
            yield event


class Window:
    """The part of a file's text that is being decoded: at least one event's length, if it has it.

    `json.loads` of it all costs ten times the file in memory.
    """

    def __init__(self, plain: io.BufferedReader):
        self._read = io.TextIOWrapper(plain, "utf-8-sig", errors="replace", newline="").read
        self.text = ""
        self.position = 0  # in the text: what lies before it was decoded
        self.characters = 0  # read so far
        self.is_mended = False  # whether some of it is not UTF-8
        self._is_over = False

    def look_ahead(self) -> bool:
        """Read on where less than an event's length is left; return whether more will follow."""
        while not self._is_over and len(self.text) - self.position < MAX_EVENT:
            piece = self._read(2 * MAX_EVENT)
            self._is_over = not piece
            self.is_mended |= "\ufffd" in piece
            self.characters += len(piece)
            self.text = self.text[self.position :] + piece
            self.position = 0
        return not self._is_over

    def mend(self, start: int) -> bool:
        """Put null in the place of what Kineto prints for no value; return whether it was there."""
        rest = _BARE.sub("null", self.text[start:])
        is_other = rest != self.text[start:]
        self.text = self.text[:start] + rest
        return is_other


# == a folder or an archive of traces, one for each rank ==


def holds_several(path: str | os.PathLike) -> bool:
    """Return whether `path` is a folder or a tar archive; all else is read as one trace."""
    try:
        if os.path.isdir(path):
            return True
        with unpacked(path, MAX_ARCHIVE) as plain:
            _header(plain.read(TAR_BLOCK))
        return True
    except (OSError, ValueError, *BROKEN):
        return False


def files_in(path: Path) -> Iterator[TraceFile]:
    """Yield what is named like a trace in a folder or archive; read each before the next."""
    for count, file in enumerate(_all_files_in(path)):
        if count == MAX_TRACES:
            raise TraceFile(path).error(f"has more than {MAX_TRACES:,} traces", FEWER_RANKS)
        yield file


def _all_files_in(path: Path) -> Iterator[TraceFile]:
    if path.is_dir():
        for file in sorted([*path.glob("*"), *path.glob("*/*")]):
            if _is_named_like_a_trace(file.name):
                yield TraceFile(file)
        return
    whole = TraceFile(path)
    try:
        with unpacked(path, MAX_ARCHIVE) as plain:
            yield from _members(whole, plain)
    except (OSError, *BROKEN) as why:
        what = f"is damaged or cannot be read ({why})"
        raise whole.error(what, "pack the traces again, or copy the archive again") from None


def _members(whole: TraceFile, plain: io.BufferedReader) -> Iterator[TraceFile]:
    """Yield the traces in a tar archive, from the front; links and devices are passed over.

    Python's own reader takes a header of any size into memory.
    """
    long_name = None
    count = 0
    while (block := plain.read(TAR_BLOCK)).strip(b"\0"):
        count += 1
        if count > MAX_MEMBERS:
            raise whole.error(f"has more than {MAX_MEMBERS:,} members", ONE_PER_RANK)
        header = _header(block)
        name = long_name[1] if long_name else header.name
        if not 0 <= header.size <= (MAX_SIZE if header.isreg() else MAX_HEADER):
            what = f"has a member of {header.size:,} bytes"
            raise whole.error(what, ONE_PER_RANK)
        content = Unpacked(plain, header.size, MAX_SIZE)
        long_name = None
        if header.type in LONG_NAMES:
            said = content.stored(MAX_HEADER).decode("utf-8", "replace")
            long_name = LONG_NAMES[header.type].search(said)
        elif header.isreg() and _is_named_like_a_trace(os.path.basename(name)):
            yield TraceFile(os.path.join(whole.path, name), io.BufferedReader(content))
        while content.stored(MAX_HEADER):
            pass  # what nobody has read
        plain.read(-header.size % TAR_BLOCK)
    if not block:
        raise EOFError("it is cut short")


def _header(block: bytes) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(block, "utf-8", "replace")


def _is_named_like_a_trace(name: str) -> bool:
    return name.endswith((".json", ".json.gz")) and not name.startswith(".")
