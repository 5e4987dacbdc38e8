"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record (a folder, a .jsonl or .jsonl.gz file) may come from anywhere: loading one runs no code,
and what readers rely on is checked (`labkit.stamps.event_shapes`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from labkit.stamps.event_shapes import is_sound, keys_of_lines
from labkit.stamps.events import FILE_NAME, VERSION
from labkit.stamps.old_records import as_of_today
from labkit.stamps.plain_file import BROKEN, PIECE, Unreadable, opened, unpacked
from labkit.text import one_line, printable, with_texts

Event = dict[str, Any]
"""One line of a log, as JSON types: its name under "event", and what `event_shapes` says of it."""

# Bounds on a record. `MAX_BYTES` are of its text, unpacked: about 15 million steps
MAX_BYTES = 2 * 2**30
MAX_RATIO = 50  # times its size: the numbers of a real one pack to a fifth
MAX_LINE = 2**20
MAX_PARTS = 50_000  # lists and objects in an event, each of which takes 60 bytes or more
MAX_OTHERS = 200_000  # lines that are not steps: twice those of the longest watched loop
MAX_VALUES = 16 * MAX_OTHERS  # that are in these
LONG = 2**14  # bytes of a line in which a text may be too long
NO_SPEC = "not a labkit record: it does not begin with a spec"
HEAD = b'{"event":'
# In a line of JSON: an escape, or bytes of UTF-8, either of which may be what `one_line` replaces
MAY_STEER = re.compile(rb"\\[ubfrnt]|[\x7f-\xff]")


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
            with opened(self.path) as file:
                return list(self._events(file))
        except (FileNotFoundError, Unreadable):
            return []

    def _events(self, file: BufferedReader) -> Iterator[Event]:
        """Yield what is new in a file as it is now: a quick writer would not let go of a reader."""
        end = os.fstat(file.fileno()).st_size
        file.seek(self.place)
        while data := file.read(min(PIECE, max(0, end - self.place))):
            self.place += len(data)
            *lines, torn = (self.torn + data).split(b"\n")
            self.torn = torn[-MAX_LINE - 1 :]  # of one that is too long
            yield from filter(None, map(event_on, lines))


def events_of(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Yield the events of a record one by one; raise RecordError on anything that is not one.

    However small the file is and whatever it unpacks to, the work ends at the bounds above.
    """
    others = 0  # lines that are not steps
    values = 0  # in these
    number = 0  # of lines
    where = one_line(os.fsdecode(path))
    try:
        with opened_record(path) as stream:
            for line in _whole_lines(stream):
                event = event_on(line) if line else None
                if event is None and not _is_torn(line):
                    raise _Refused("not an event of a labkit record")
                number += 1
                if event is None or event["event"] != "step":
                    others += 1
                    values += line.count(b",")
                if others > MAX_OTHERS or values > MAX_VALUES:
                    raise _Refused("more events beside its steps than a record has")
                if number == 1:
                    _check_spec(event)
                if event is not None:
                    yield as_of_today(event)
        if not number:
            raise _Refused(NO_SPEC)
    except _Refused as refusal:
        raise RecordError(f"{where}, line {number + 1}: {refusal}.") from None
    except FileNotFoundError:
        raise RecordError(f"{where}: no record here; give a folder or a .jsonl file.") from None
    except BROKEN as error:
        said = one_line(str(error))
        raise RecordError(f"{where}: cannot be read ({said}); give a run's record.") from None


class _Refused(Exception):
    """The file is no record, or beyond the bounds of one; the message says what is wrong."""


def _whole_lines(stream: BufferedReader) -> Iterator[bytes]:
    """Yield the whole lines of a record; what follows the last of them is torn, or nothing."""
    while (line := stream.readline(MAX_LINE + 1)).endswith(b"\n"):
        yield line[:-1]
    if len(line) > MAX_LINE:
        raise _Refused(f"a line is longer than {MAX_LINE // 2**10} KiB")


def _is_torn(line: bytes) -> bool:
    """Return whether a line is empty, or the front of an event whose writer was killed."""
    if not line.strip():
        return True
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(HEAD)
    return False


def _check_spec(event: Event | None) -> None:
    """Refuse a record whose first line is no spec, or one of a newer version."""
    if event is None or event["event"] != "spec":
        raise _Refused(NO_SPEC)
    if event["version"] > VERSION:
        raise _Refused(f"written by a newer labkit (format {event['version']})")


def opened_record(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a record, a folder or a file, to read its text, unpacked."""
    return unpacked(record_file(path), MAX_BYTES, MAX_RATIO)


def record_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that holds a record: in a run's folder its log, else `path` itself."""
    return Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)


def is_record(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a record does, whatever follows."""
    try:
        with opened_record(path) as file:
            first = event_on(file.readline(MAX_LINE))
    except BROKEN:
        return False
    return first is not None and first["event"] == "spec"


def event_on(line: bytes) -> Event | None:
    """Return the event on `line`, past what a killed writer left before it; None if unsound."""
    if len(line) > MAX_LINE or line.count(b"[") + line.count(b"{") > MAX_PARTS:
        return None
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        return event_on(line[torn:]) if torn > 0 else None
    if not is_sound(event):
        return None
    return _as_text(event) if len(line) > LONG or MAY_STEER.search(line) else event


def _as_text(event: Event) -> Event:
    """Return an event whose texts, which are anybody's, are parts of one line, but for a few."""
    texts = with_texts(event, one_line, one_line)
    for key in keys_of_lines(event["event"]):
        if isinstance(event.get(key), str):
            texts[key] = printable(event[key])
    return texts
