"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record is a run's folder, or one .jsonl or .jsonl.gz file with the same lines. JSON only: loading
one runs no code.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from labkit.process.events import FILE_NAME, VERSION
from labkit.results.record_shape import sound

MAX_BYTES = 256 * 2**20  # of a record, unpacked: about two million steps
MAX_LINE = 2**20
HEAD = b'{"event":'


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


STRICT = json.JSONDecoder(parse_constant=_no_constant)  # no NaN and no infinity


class RecordError(ValueError):
    """A record that cannot be used: the message names the file, what is wrong, and what to do."""


class Tail:
    """Follows a log that is still being written; a torn last line waits for its other half."""

    def __init__(self, path: Path):
        self.path, self.place, self.torn = path, 0, b""

    def read(self) -> list[dict[str, Any]]:
        """Return the events that came since the last call; other lines are skipped."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.place)
                data = file.read()
        except FileNotFoundError:
            return []
        self.place += len(data)
        *lines, self.torn = (self.torn + data).split(b"\n")
        return [event for line in lines if (event := _event(line)) is not None]


def read_record(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read and check a whole record; raise RecordError on anything that is not one."""
    path = Path(path)
    file = path / FILE_NAME if os.path.isdir(path) else path
    try:
        data = _bounded(file)
    except FileNotFoundError:
        raise RecordError(
            f"{path}: there is no record here; give a folder or a .jsonl file."
        ) from None
    except (OSError, EOFError, gzip.zlib.error) as error:
        raise RecordError(f"{path}: cannot be read ({error}).") from None
    events = []
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        event = _event(line)
        if event is None and line.strip() and not _is_torn(line):
            raise RecordError(f"{path}, line {number}: not an event of a labkit record.")
        if event is not None:
            events.append(event)
    if not events or events[0]["event"] != "spec":
        raise RecordError(f"{path}: not a labkit record: it does not begin with a spec.")
    if events[0]["version"] > VERSION:
        raise RecordError(f"{path}: written by a newer labkit (format {events[0]['version']}).")
    return events


def _is_torn(line: bytes) -> bool:
    """Whether a line is the front of an event whose writer was killed: passed over, not refused."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(HEAD)
    return False


def first_event(path: str | os.PathLike) -> dict[str, Any]:
    """Return the first event of a record: what kind it is. {} where there is none to be read."""
    path = Path(path)
    file = path / FILE_NAME if os.path.isdir(path) else path
    try:
        with _open(file) as stream:
            return _event(stream.readline(MAX_LINE)) or {}
    except (OSError, EOFError, gzip.zlib.error):
        return {}


def _open(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def _bounded(file: Path) -> bytes:
    with _open(file) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"larger than {MAX_BYTES // 2**20} MiB")
    return data


def _event(line: bytes) -> dict[str, Any] | None:
    """Return the event on `line`, or None where it is not one of the right shape.

    A writer that was killed may have left the front of a line before it: that is passed over.
    """
    if len(line) > MAX_LINE:
        return None
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        return _event(line[torn:]) if torn > 0 else None
    return event if sound(event) else None
