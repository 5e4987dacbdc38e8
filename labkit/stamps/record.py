"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record (a folder, a .jsonl or .jsonl.gz file) may come from anywhere: loading one runs no code,
and what readers rely on is checked (`labkit.stamps.event_shapes`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from labkit.stamps.event_shapes import fits
from labkit.stamps.events import FILE_NAME, VERSION
from labkit.stamps.plain_file import BROKEN, Unreadable, open_plain, unpack
from labkit.text import one_line, printable, with_texts

Event = dict[str, Any]
"""One line of a log, as JSON types: its name under "event", and what `event_shapes` says of it."""

# Bounds on a record. `MAX_BYTES` are of its text, unpacked: about 15 million steps
MAX_BYTES = 2 * 2**30
MAX_LINE = 2**20
LEAST_VALUES = 16  # that a line counts for
MAX_VALUES = 200_000 * LEAST_VALUES  # in lines that are not steps: twice the longest watched loop's
HEAD = b'{"event":'
HEAD_EVENTS = 20  # of a record: its spec and its machine are among them
# In a line of JSON: an escape, or bytes of UTF-8, either of which may be what `one_line` replaces
MAY_STEER = re.compile(rb"\\[ubfrnt]|[\x7f-\xff]")
OF_LINES = ("message", "traceback", "error")  # keys whose text may have several lines


class RecordError(ValueError):
    """A record that cannot be used: the message names the file, what is wrong, and what to do."""


class NoEvent(ValueError):
    """A line, or a file, is nothing that labkit wrote; the message says what is wrong."""


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")


STRICT = json.JSONDecoder(parse_constant=_no_constant)  # no NaN and no infinity


class Tail:
    """Follows a log that is still being written; a torn last line waits for its other half."""

    def __init__(self, path: Path):
        self.path = path
        self.place = 0  # bytes read so far

    def read(self) -> list[Event]:
        """Return the events since the last call; lines that are no event are skipped."""
        events = []
        with contextlib.suppress(FileNotFoundError, Unreadable), open_plain(self.path) as file:
            end = os.fstat(file.fileno()).st_size  # a quick writer would not let go of a reader
            file.seek(self.place)
            while self.place < end and (line := _next_line(file)):
                self.place += len(line)
                with contextlib.suppress(NoEvent):
                    events.append(event_on(line))
        return [event for event in events if event]


def events_of(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Yield the events of a record one by one; raise RecordError on anything that is not one.

    However small the file is and whatever it unpacks to, the work ends at the bounds above.
    """
    values = 0  # in lines that are not steps
    number = 0  # of the line
    where = one_line(os.fsdecode(path))
    try:
        with open_record(path) as stream:
            while line := _next_line(stream):
                number += 1
                event = event_on(line)
                if number == 1:
                    _check_spec(event)
                if event is None or event["event"] != "step":
                    values += max(LEAST_VALUES, line.count(b","))
                if values > MAX_VALUES:
                    raise NoEvent("more events beside its steps than a record has")
                if event is not None:
                    yield _as_of_today(event)
        if not number:
            _check_spec(None)
    except NoEvent as refusal:
        raise RecordError(f"{where}, line {max(1, number)}: {refusal}.") from None
    except FileNotFoundError:
        raise RecordError(f"{where}: no record here; give a folder or a .jsonl file.") from None
    except BROKEN as error:
        said = one_line(str(error))
        raise RecordError(f"{where}: cannot be read ({said}); give a run's record.") from None


def head_of(path: str | os.PathLike[str]) -> dict[str, Event]:
    """Return the first event of each name in a record's head; {} where it is no record."""
    found: dict[str, Event] = {}
    with contextlib.suppress(RecordError):
        for event in itertools.islice(events_of(path), HEAD_EVENTS):
            found.setdefault(event["event"], event)
    return found


def _next_line(stream: BufferedReader) -> bytes:
    """Return the next whole line, or what is too long for one; b"" where no such follows."""
    line = stream.readline(MAX_LINE + 1)
    return line if line.endswith(b"\n") or len(line) > MAX_LINE else b""


def _check_spec(event: Event | None) -> None:
    """Refuse a record whose first line is no spec, or one of a newer version."""
    if event is None or event["event"] != "spec":
        raise NoEvent("not a labkit record: it does not begin with a spec")
    if event["version"] > VERSION:
        raise NoEvent(f"written by a newer labkit (format {event['version']})")


def open_record(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a record, a folder or a file, to read its text, unpacked."""
    return unpack(open_plain(record_file(path)), MAX_BYTES)


def record_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that holds a record: in a run's folder its log, else `path` itself."""
    return Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)


def event_on(line: bytes) -> Event | None:
    """Return the event on `line`, past what a killed writer left before it; None of a torn one.

    NoEvent: the line is another's.
    """
    if len(line) > MAX_LINE:
        raise NoEvent(f"a line is longer than {MAX_LINE // 2**10} KiB")
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        if torn > 0:
            return event_on(line[torn:])
        event = None
        if torn == 0 or not line.strip():
            return None
    name = event.get("event") if isinstance(event, dict) else None
    if not (isinstance(name, str) and fits(event, name)):
        raise NoEvent("not an event of a labkit record")
    return _as_text(event) if MAY_STEER.search(line) else event


def _as_text(event: Any) -> Event:
    """Return an event whose texts, which are anybody's, are parts of one line, but for a few."""
    lines = {key: printable(event[key]) for key in OF_LINES if isinstance(event.get(key), str)}
    return with_texts(event, one_line, one_line) | lines


def _as_of_today(event: Event) -> Event:
    """Return an event of an older record, made before `lk.measure` was, as it is written today."""
    name = event["event"]
    if name == "measurement":
        values = {"of": event["of"]} | event["case"] | (event.get("values") or {})
        return event | {"event": "row", "values": values}
    if name == "skipped":
        values = {"of": event["what"]}
        return {"event": "row", "values": values, "error": event["why"], "kind": "skipped"}
    if name == "spec" and event.get("experiment"):
        return {"measure": event["experiment"], **event}
    return event
