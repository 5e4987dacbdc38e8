"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record (a folder, a .jsonl or .jsonl.gz file) may come from anywhere: loading one runs no code,
and what readers rely on is checked (`labkit.results.event_shapes`).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NoReturn

from labkit.process.events import FILE_NAME, VERSION
from labkit.results.event_checks import is_sound
from labkit.results.old_records import as_of_today
from labkit.results.text import printable, with_texts

Event = dict[str, Any]
"""One line of a log, as JSON types: its name under "event", and what `event_shapes` says of it."""

# Bounds on a record. `MAX_BYTES` are of its text, unpacked: about 15 million steps. The numbers of
# a real one pack to a fifth, a bomb to a thousandth; so small a text as `ROOM` may be either.
MAX_BYTES = 2 * 2**30
MAX_LINE = 2**20
MAX_RATIO = 50
ROOM = 2**20
MAX_EMPTY = 10_000  # lines that are empty or torn: a killed writer leaves one
MAX_OTHERS = 1_000_000  # events that are not steps
MAX_NAMES = 100  # of different events
NO_SPEC = "not a labkit record: it does not begin with a spec"
HEAD = b'{"event":'
# In a line of JSON: an escape, or bytes of UTF-8, either of which may be what `printable` replaces
MAY_STEER = re.compile(rb"\\[ubfr]|[\x7f-\xff]")
BROKEN = (OSError, EOFError, zlib.error)  # a file that cannot be read to its end


class RecordError(ValueError):
    """A record that cannot be used: the message names the file, what is wrong, and what to do."""


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


STRICT = json.JSONDecoder(parse_constant=_no_constant)  # no NaN and no infinity


class Tail:
    """Follows a log that is still being written; a torn last line waits for its other half."""

    def __init__(self, path: Path):
        self.path = path
        self.place = 0  # bytes read so far
        self.torn = b""  # the beginning of a line

    def read(self) -> list[Event]:
        """Return the events since the last call; lines that are no event are skipped."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.place)
                data = file.read()
        except FileNotFoundError:
            return []
        self.place += len(data)
        *lines, self.torn = (self.torn + data).split(b"\n")
        events = map(event_on, lines)
        return [event for event in events if event is not None]


def read_record(path: str | os.PathLike[str]) -> list[Event]:
    """Read and check a whole record; raise RecordError on anything that is not one."""
    return list(events_of(path))


def events_of(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Yield the events of a record one by one; raise RecordError on anything that is not one.

    However small the file is and whatever it unpacks to, the work ends at the bounds above.
    """
    names: Counter[str] = Counter()  # of the events so far
    empty = 0  # lines without an event: torn or empty
    number = 0  # of lines
    try:
        with opened(path) as stream:
            for line in _whole_lines(stream):
                number += 1
                event = event_on(line)
                if event is not None:
                    _count(event, names)
                    yield as_of_today(event)
                    continue
                if line.strip() and not _is_torn(line):
                    raise _Refused("not an event of a labkit record")
                empty += 1
                if empty > MAX_EMPTY:
                    raise _Refused(f"more than {MAX_EMPTY:,} lines without an event")
        if not names:
            raise _Refused(NO_SPEC)
    except _Refused as refusal:
        raise RecordError(f"{path}, line {max(1, number)}: {refusal}.") from None
    except FileNotFoundError:
        raise RecordError(f"{path}: no record here; give a folder or a .jsonl file.") from None
    except BROKEN as error:
        raise RecordError(f"{path}: cannot be read ({error}).") from None


class _Refused(Exception):
    """The file is no record, or beyond the bounds of one; the message says what is wrong."""


def _whole_lines(stream: BufferedIOBase) -> Iterator[bytes]:
    """Yield the whole lines of a record; what follows the last of them is torn, or nothing."""
    packed = getattr(stream, "fileobj", None)  # what a gzip stream unpacks
    size = 0
    while (line := stream.readline(MAX_LINE + 1)).endswith(b"\n"):
        size += len(line)
        if packed is not None and size > ROOM + MAX_RATIO * packed.tell():
            raise _Refused(f"unpacks to more than {MAX_RATIO} times its size: no record does")
        if size > MAX_BYTES:
            raise _Refused(f"cannot be read (larger than {MAX_BYTES // 2**20} MiB)")
        yield line[:-1]
    if len(line) > MAX_LINE:
        raise _Refused(f"a line is longer than {MAX_LINE // 2**10} KiB")


def _count(event: Event, names: Counter[str]) -> None:
    """Count an event of a record; the first has to be the spec."""
    if not names:
        if event["event"] != "spec":
            raise _Refused(NO_SPEC)
        if event["version"] > VERSION:
            raise _Refused(f"written by a newer labkit (format {event['version']})")
    names[event["event"]] += 1
    if names.total() - names["step"] > MAX_OTHERS:
        raise _Refused(f"more than {MAX_OTHERS:,} events that are not steps")
    if len(names) > MAX_NAMES:
        raise _Refused(f"events of more than {MAX_NAMES} kinds")


def opened(path: str | os.PathLike[str]) -> BufferedIOBase:
    """Open a record, a folder or a file, for reading bytes."""
    file = record_file(path)
    return gzip.GzipFile(file) if file.suffix == ".gz" else open(file, "rb")


def record_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that holds a record: in a run's folder its log, else `path` itself."""
    return Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)


def is_record(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a record does, whatever follows."""
    try:
        with opened(path) as file:
            first = event_on(file.readline(MAX_LINE))
    except BROKEN:
        return False
    return first is not None and first["event"] == "spec"


def event_on(line: bytes) -> Event | None:
    """Return the event on `line`, past what a killed writer left before it; None if unsound."""
    if len(line) > MAX_LINE:
        return None
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        return event_on(line[torn:]) if torn > 0 else None
    if not is_sound(event):
        return None
    # Names in a record are anybody's
    return with_texts(event, printable, printable) if MAY_STEER.search(line) else event


def _is_torn(line: bytes) -> bool:
    """Return whether it is the front of an event whose writer was killed."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(HEAD)
    return False
