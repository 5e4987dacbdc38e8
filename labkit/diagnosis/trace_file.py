"""Yield the events of a trace file of unknown origin one by one; put traces of ranks together.

`json.loads` costs ten times a file in memory and three times the time. A file may be anything: a
fragment, a picture, a bomb. Every refusal is one `TraceError`.
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
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, BinaryIO

from labkit.diagnosis.thresholds import WORTH_NAMING
from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SIZE = 2 * 2**30  # characters, unpacked: some 5 million events, a minute of reading
# Characters of one event, or before or behind them all; real events, with shapes and stack, have
# 100,000
MAX_VALUE = 2 * 2**20
MAX_EVENTS = 10_000_000  # as many as 2 GiB hold of real ones; empty ones cost 1 s a million
CHUNK = 2**19  # characters read at a time
# Real traces pack to a thirtieth, a bomb to a thousandth; so small a text as `ROOM` may be either
MAX_RATIO, ROOM = 200, 2**21
BOMB = f"unpacks to more than {MAX_RATIO} times its size, as no trace does"
MAX_MEMBERS = 4_096  # of an archive or a folder: a file for each rank of a job

RANK_IN_NAME = re.compile(r"(?i)(?:rank|worker)[-_. ]?(\d{1,7})")

_HEAD = re.compile(r'\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)  # up to the first event
_BETWEEN = re.compile(r"[ \t\n\r,]*")
# Kineto has printed these where JSON has no word for the value (a bandwidth over 0 µs, for one).
_BARE = re.compile(r"(?<=[:,\[\s])(?:-?(?:nan|inf)|N/A)(?=[\s,}\]])")
# Numbers stay text: the few that are used are converted with a bound on their size, and a
# timestamp in µs since 1970 with three decimals does not fit a float.
_JSON = json.JSONDecoder(strict=False, parse_int=str, parse_float=str, parse_constant=str)

EXPORT_AGAIN = "export it again with prof.export_chrome_trace(), and let that finish before copying"
PROFILE_LESS = "profile fewer steps, as with torch.profiler.schedule(wait=2, warmup=2, active=5)"
BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError,
          zipfile.BadZipFile, RuntimeError)  # fmt: skip


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, what is wrong and what to do."""


class NotATrace(TraceError):
    """Something other than a profiler trace, which may lie beside traces in a folder."""


class TraceFile:
    """The events of a Chrome trace, at `path` or the open `member` of an archive; iterate once."""

    def __init__(self, path: str | os.PathLike, member: BinaryIO | None = None):
        self.path, self._member = os.fsdecode(path), member
        self.meta: dict[str, Any] = {}  # what it says beside its events, once these are read
        self.notes: list[str] = []  # what was repaired on the way, as sentences
        self._text, self._pos = "", 0  # the window, and up to where it has been read
        self._before = 0  # characters of the file before the window

    def error(self, what: str, remedy: str = EXPORT_AGAIN, kind: type = TraceError) -> TraceError:
        """Return the exception for this file: one sentence of name, fault and remedy."""
        return kind(f"{self.path!r} {what}: {remedy}.")

    @property
    def size(self) -> int:
        """Characters read so far."""
        return self._before + len(self._text)

    def __iter__(self) -> Iterator[Any]:
        try:
            if not (self._member or stat.S_ISREG(os.stat(self.path).st_mode)):
                # a pipe or a device would block, or never end
                raise self.error("is not a regular file", "give the path of a trace file")
            with self._member or open(self.path, "rb") as raw:
                packed = raw.peek(2)[:2] == b"\x1f\x8b"  # the name may lie, these bytes do not
                plain = gzip.GzipFile(fileobj=raw) if packed else raw
                self._packed = raw if packed else None
                self._stream = io.TextIOWrapper(plain, "utf-8-sig", errors="replace", newline="")
                head = self._head()
                yield from self._events()
                while self._more():
                    pass
                around = _JSON.decode(_BARE.sub("null", head + self._text[self._pos :]))
                self.meta = around if type(around) is dict else {}
        except TraceError:
            raise
        except RecursionError:
            raise self.error("is nested too deeply to be a profiler trace") from None
        except json.JSONDecodeError as fault:
            raise self.error(f"is damaged or cut short around its events ({fault.msg})") from None
        except BROKEN as damage:
            raise self.error(f"is damaged or cut short ({damage})") from None
        except (OSError, ValueError) as why:  # ValueError: a NUL byte in the path
            what = f"cannot be read ({getattr(why, 'strerror', None) or why})"
            raise self.error(what, "check the path and the permissions") from None

    def _head(self) -> str:
        """Step over what stands before the first event, and return it."""
        while not (head := _HEAD.match(self._text)):
            if len(self._text) < MAX_VALUE and self._more():
                continue
            if not self._text:
                raise self.error("is empty")
            what = "is not a profiler trace, which is a list or has a list of 'traceEvents'"
            raise self.error(what, kind=NotATrace)
        self._pos = head.end()
        return head.group()

    def _events(self) -> Iterator[Any]:
        """Decode one event after the other, up to the end of their list."""
        count = 0
        while True:
            self._pos = _BETWEEN.match(self._text, self._pos).end()
            if self._text.startswith("]", self._pos):
                return
            try:
                event, end = _JSON.scan_once(self._text, self._pos)
            except StopIteration as stop:
                self._mend(stop.value)
            except json.JSONDecodeError as fault:
                self._mend(fault.pos)
            else:
                # A number that touches the window's end may go on beyond it.
                if end == len(self._text):
                    self._mend(end)
                    continue
                if count == MAX_EVENTS:
                    raise self.error(f"has more than {MAX_EVENTS:,} events", PROFILE_LESS)
                count, self._pos = count + 1, end
                yield event

    def _mend(self, at: int) -> None:
        """Put null for a word that JSON lacks; else get more text, in case that is what lacks."""
        place = self._before + at
        if _BARE.match(self._text, at):
            before = max(self._pos - 1, 0)  # the pattern looks at the character before, too
            self._text = self._text[:before] + _BARE.sub("null", self._text[before:])
        elif not self._more():
            raise self.error(f"is cut short, or not valid JSON, near character {place:,}")

    def _more(self) -> bool:
        """Drop the text already read and add to the rest; return False at the end of the file."""
        rest = self._text[self._pos :]
        if len(rest) >= MAX_VALUE:
            place = self._before + self._pos
            raise self.error(f"has no whole event in {MAX_VALUE:,} characters from {place:,} on")
        # Doubling keeps the cost of decoding a long event again and again linear.
        piece = self._stream.read(max(CHUNK, len(rest)))
        if "\ufffd" in piece:
            self.notes.append("Text that is not UTF-8 was replaced by question marks.")
        self._before += self._pos
        self._text, self._pos = rest + piece, 0
        if self._packed and self.size > _most_of(self._packed.tell()):
            raise self.error(BOMB)
        if self.size > MAX_SIZE:
            raise self.error(f"is larger than {MAX_SIZE / 2**30:g} GiB uncompressed", PROFILE_LESS)
        return bool(piece)


# -- a folder or an archive of traces, one for each rank -------------------------------------------


def packing(path: str | os.PathLike) -> str:
    """Return "folder", "zip" or "tar" by the first bytes of `path`, and "" of a single file."""
    if not os.path.isfile(path):
        return "folder" if os.path.isdir(path) else ""
    try:
        with open(path, "rb") as raw:
            start = raw.peek(262)
            if start[:2] == b"\x1f\x8b":
                start = gzip.GzipFile(fileobj=raw).read(262)
    except (OSError, *BROKEN):
        return ""  # reading it as one trace says what is wrong
    return "zip" if start[:4] == b"PK\3\4" else "tar" if start[257:262] == b"ustar" else ""


def files_in(path: Path, kind: str) -> Iterator[TraceFile]:
    """Yield what may be a trace in a folder or archive; read each before asking for the next."""
    most = _most_of(os.stat(path).st_size)  # characters in an archive
    read = 0
    try:
        for number, file in enumerate(_members(path, kind, most), 1):
            if number > MAX_MEMBERS:
                what = f"holds more than {MAX_MEMBERS:,} files named like a trace"
                raise TraceFile(path).error(what, "give one .json or .json.gz for each rank")
            yield file
            read += file.size
            if kind != "folder" and read > most:
                raise TraceFile(path).error(BOMB, "pack the traces again")
    except (OSError, *BROKEN) as why:
        what = f"is damaged or cannot be read ({why})"
        raise TraceFile(path).error(what, "copy it again") from None


def _members(path: Path, kind: str, most: int) -> Iterator[TraceFile]:
    if kind == "folder":
        found = [each for depth in ("*", "*/*") for each in path.glob(depth)]
        yield from map(TraceFile, sorted(filter(_is_named_so, found)))
    elif kind == "zip":
        with zipfile.ZipFile(path) as packed:
            if sum(member.file_size for member in packed.infolist()) > most:
                raise TraceFile(path).error(BOMB, "pack the traces again")
            for name in filter(_is_named_so, sorted(packed.namelist())):
                yield TraceFile(path / name, packed.open(name))
    else:
        with tarfile.open(path) as packed:
            for member in packed:  # in its order: to go back is to unpack it again
                if member.offset_data + member.size > most:
                    raise TraceFile(path).error(BOMB, "pack the traces again")
                if member.isfile() and _is_named_so(member.name):
                    yield TraceFile(path / member.name, packed.extractfile(member))


def _most_of(packed: int) -> int:
    """Return the most characters that so many packed bytes may hold."""
    return ROOM + MAX_RATIO * packed


def _is_named_so(name: str | Path) -> bool:
    name = os.path.basename(name)
    return name.endswith((".json", ".json.gz")) and not name.startswith(".")


@dataclass(frozen=True, repr=False)
class RankTraces(Result):
    """The traces of a job: a Breakdown for each rank, in the order of their `rank`."""

    source: str
    ranks: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> Any:
        return self.ranks[index]

    def compare(self, after: Any) -> Any:
        """Refuse: one rank is compared with another."""
        raise TraceError(f"{self.source!r} holds several ranks: compare one of its .ranks.")

    collective_us = property(
        lambda self: {b.rank: b.busy.get("comm_busy", 0.0) * b.step_us for b in self.ranks},
        doc="µs of a step that each rank is in collectives, in which it also waits for others.",
    )

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for, so that it waits least; None where none stands out."""
        spent = self.collective_us
        late = min(spent, key=spent.get)
        waits = median([us for rank, us in spent.items() if rank != late] or [0.0]) - spent[late]
        return late if waits >= WORTH_NAMING["straggler"] * fmean(b.step_us for b in self) else None

    @property
    def headline(self) -> str:
        """Say which rank the others wait for."""
        spent, late = self.collective_us, self.straggler
        if late is None:
            return "no rank keeps the others waiting"
        own, others = spent.pop(late) / 1000, median(spent.values()) / 1000
        return (
            f"rank {late} is the straggler: it is in collectives for {own:,.1f} ms of a step, the "
            f"others, which wait for it, for {others:,.1f} ms (median)"
        )

    def plot(self) -> Figure:
        """Draw every rank's average step as bars."""
        from labkit.view.analysis_figures import draw_ranks

        return draw_ranks(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the straggler, and what each rank's `to_dict` returns."""
        head = {"source": self.source, "straggler": self.straggler, "headline": self.headline}
        ranks = [each.to_dict() for each in self.ranks]
        return {**head, "ranks": ranks, "notes": list(self.notes)}

    def table(self) -> Table:
        """Return a row for each rank: its step, and shares of it."""
        head = {"compute_busy": "compute", "comm_busy": "collectives", "exposed_comm": "exposed",
                "idle": "device idle", "dataloader_share": "DataLoader"}  # fmt: skip
        rows = []
        for b in self.ranks:
            shares = (f"{b.busy[key]:.1%}" if key in b.busy else None for key in head)
            rows.append((b.rank, f"{b.step_us / 1000:,.2f} ms", *shares))
        title = f"Traces {self.source}: {len(self)} ranks; {self.headline}"
        foot = [f"note: {note}" for note in self.notes]
        bold = [row for row, b in enumerate(self.ranks) if b.rank == self.straggler]
        return Table(rows, ("rank", "step", *head.values()), title, foot, (), bold)


def ranks_of(path: str | os.PathLike, kind: str, read: Callable[[TraceFile], Any]) -> RankTraces:
    """Read the traces of a folder or archive; of several of one rank, the last by name."""
    found, notes, ranks = [], [], {}
    for file in files_in(Path(os.fsdecode(path)), kind):
        try:
            one = read(file)
        except NotATrace:
            notes.append(f"{os.path.basename(file.path)} is not a profiler trace: left out.")
            continue
        named = RANK_IN_NAME.findall(one.source)
        found.append(replace(one, rank=int(named[-1])) if one.rank is None and named else one)
    if not found:
        what, remedy = "holds no profiler trace", "give one .json or .json.gz for each rank"
        raise TraceFile(path).error(what, remedy)
    found.sort(key=lambda one: one.source)
    if any(one.rank is None for one in found):
        notes.append("Not every file says its rank: they are numbered in the order of their names.")
        found = [replace(one, rank=number) for number, one in enumerate(found)]
    for one in found:
        if earlier := ranks.get(one.rank):
            notes.append(f"Rank {one.rank} has several traces: left out {earlier.source}.")
        ranks[one.rank] = one
    name = os.path.basename(os.path.abspath(os.fsdecode(path)))
    return RankTraces(name, tuple(ranks[rank] for rank in sorted(ranks)), tuple(notes))
