"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record is a run's folder, or one .jsonl or .jsonl.gz file with the same lines. JSON only: loading
one runs no code.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

from labkit.bench.events import FILE_NAME, VERSION

MAX_BYTES = 256 * 2**20  # of a record, unpacked: about two million steps
MAX_LINE = 2**20

# What a reader relies on: event -> {key: type}. Other keys and other events are passed through.
SHAPE: dict[str, dict[str, Any]] = {
    "spec": {"version": int, "run": str, "pipeline": dict},
    "machine": {"device": str, "kind": str, "name": str, "versions": dict},
    "job": {"pipeline": dict, "not_applied": dict},
    "stage": {"name": str},
    "begin": {"warmup": int},
    "epoch": {"step": int},
    "measurement": {"of": str, "case": dict, "seconds": list},
    "skipped": {"what": str, "why": str},
    "step": {"i": int, "t": list, "n": int},
    "error": {"kind": str, "message": str},
    "memory": {},
    "telemetry": {},
    "xray": {"steps": int},
    "no_xray": {"why": str},
    "end": {},
}


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
    file = path / FILE_NAME if path.is_dir() else path
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
        if event is None and line.strip():
            raise RecordError(f"{path}, line {number}: not an event of a labkit record.")
        if event is not None:
            events.append(event)
    if not events or events[0]["event"] != "spec":
        raise RecordError(f"{path}: not a labkit record: it does not begin with a spec.")
    if events[0]["version"] > VERSION:
        raise RecordError(f"{path}: written by a newer labkit (format {events[0]['version']}).")
    return events


def first_event(path: str | os.PathLike) -> dict[str, Any]:
    """Return the first event of a record: what kind it is. {} where there is none to be read."""
    path = Path(path)
    file = path / FILE_NAME if path.is_dir() else path
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
    """Return the event on `line`, or None where it is not one of the right shape."""
    if len(line) > MAX_LINE:
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    for key, kind in SHAPE.get(event["event"], {}).items():
        if not isinstance(event.get(key), kind):
            return None
    if event["event"] == "step" and not _step_is_sound(event):
        return None
    return event


def _step_is_sound(event: dict[str, Any]) -> bool:
    for key, size in (("t", 4), ("copy", 2), ("busy", 2)):
        stamps = event.get(key, [0] * size)
        if not isinstance(stamps, list) or len(stamps) != size:
            return False
        if not all(type(stamp) is int and abs(stamp) < 2**62 for stamp in stamps):
            return False
    loss, cpu_ns = event.get("loss"), event.get("cpu", 0)
    if type(cpu_ns) is not int or not 0 <= cpu_ns < 2**62:
        return False
    return loss is None or (isinstance(loss, (int, float)) and math.isfinite(loss))
