"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record (a folder, a .jsonl or .jsonl.gz file) may come from anywhere: loading one runs no code,
and what readers rely on is checked here (`SHAPES`).
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.process.events import FILE_NAME, VERSION
from labkit.spec import KNOBS, Pipeline

MAX_BYTES = 256 * 2**20  # of a record, unpacked: about two million steps
MAX_LINE = 2**20
HEAD = b'{"event":'
MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count
BROKEN = (OSError, EOFError, gzip.zlib.error)  # a file that cannot be read to its end
BODY_NOTE = (
    "A watched loop: busy is the whole loop body (copies, logging and all), since only the loader "
    "was looked at; copies and gaps inside the body do not show here."
)


class RecordError(ValueError):
    """A record that cannot be used: the message names the file, what is wrong, and what to do."""


def _whole(value: Any) -> bool:
    return type(value) is int and abs(value) < MOST


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


def _number(value: Any) -> bool:
    return _whole(value) or (type(value) is float and math.isfinite(value))


def _number_or_gap(value: Any) -> bool:
    return value is None or _number(value)


def _list_of(check: Callable, size: int | None = None) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, list) and size in (None, len(x)) and all(map(check, x))


def _dict_of(check: Callable) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


# {event: [(a type or a check, the keys that it is for)]}; one with ? may be missing or null
SHAPES: dict[str, list[tuple[Any, str]]] = {
    "spec": [
        (_whole, "version"), (str, "run utc? experiment?"), (dict, "pipeline watched? params?"),
        (lambda value: _count(value) and value <= 64, "ranks?"), (bool, "no_sync?"),
        (_dict_of(lambda knobs: isinstance(knobs, dict)), "starve?"), (_dict_of(_count), "place?"),
    ],
    "machine": [
        (str, "device kind name cpu_name? os? uuid? compute_capability? driver? pcie? unused_gpu?"),
        (_number, "memory_gib? cpu_cores? ram_gib? shm_gib? threads? sm_count?"),
        (dict, "versions"),
    ],
    "job": [(dict, "pipeline not_applied"), (("samples", "batches").__contains__, "unit?")],
    "text": [(_dict_of(_dict_of(_number)), "batchings")],
    "stage": [(str, "name"), (_count, "done? total?")],
    "begin": [(_count, "warmup")],
    "epoch": [(_count, "step")],
    "step": [
        (_count, "i n cpu?"), (_list_of(_whole, 4), "t"), (_list_of(_whole, 2), "copy? busy?"),
        (_list_of(_count, 2), "comm? tokens?"), (_number, "loss?"),
    ],
    "items": [(_whole, "worker"), (list, "rows")],
    "lines": [(_count, "pid"), (_dict_of(lambda p: isinstance(p, list)), "places"), (list, "rows")],
    "no_lines": [(str, "why")],
    "handoff": [(_whole, "bytes")],
    "telemetry": [
        (_whole, "t_ns"), (_list_of(_list_of(_number, 2)), "gpu?"),
        (_dict_of(_number_or_gap), "gpm?"),
    ],
    "measurement": [(str, "of"), (dict, "case"), (list, "seconds")],
    "skipped": [(str, "what why")],
    "work": [
        (_count, "flops bytes held_bytes parameters samples cache_bytes?"), (str, "precision"),
        (_dict_of(_number), "roof?"),
    ],
    "memory": [(_count, "peak_bytes?")],
    "compiled": [(_number, "seconds?")],
    "xray": [(_whole, "steps")],
    "no_xray": [(str, "why")],
    "ranks_ended": [(dict, "codes")],
    "error": [
        (str, "kind message traceback?"), (dict, "workers?"), (list, "files?"),
        (_count, "failed_rank?"),
    ],
    "end": [(str, "stop? why?"), (_whole, "code?")],
}  # fmt: skip
RULES = {
    event: [(key, rule) for rule, keys in shape for key in keys.split()]
    for event, shape in SHAPES.items()
}


def _sound(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    rest = dict(event)  # what no rule is about: its numbers are checked, nothing else
    for key, rule in RULES.get(rest.pop("event"), ()):
        value = rest.pop(key.rstrip("?"), None)
        fits = isinstance(value, rule) if isinstance(rule, type) else rule(value)
        if not fits and not (value is None and key.endswith("?")):
            return False
    if event["event"] == "telemetry":
        return all(map(_number_or_gap, rest.values()))
    if not _count(rest.pop("of_rank", 0)):
        return False
    return all(_number(value) for value in rest.values() if type(value) in (int, float))


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not valid JSON")


STRICT = json.JSONDecoder(parse_constant=_no_constant)  # no NaN and no infinity


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
        return [event for line in lines if (event := event_on(line)) is not None]


def read_record(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read and check a whole record; raise RecordError on anything that is not one."""
    try:
        with opened(path) as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise RecordError(f"{path}: no record here; give a folder or a .jsonl file.") from None
    except BROKEN as error:
        raise RecordError(f"{path}: cannot be read ({error}).") from None
    if len(data) > MAX_BYTES:
        raise RecordError(f"{path}: cannot be read (larger than {MAX_BYTES // 2**20} MiB).")
    events = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):  # what follows is torn, or nothing
        if (event := event_on(line)) is not None:
            events.append(event)
        elif line.strip() and not _is_torn(line):
            raise RecordError(f"{path}, line {number}: not an event of a labkit record.")
    if not events or events[0]["event"] != "spec":
        raise RecordError(f"{path}: not a labkit record: it does not begin with a spec.")
    if events[0]["version"] > VERSION:
        raise RecordError(f"{path}: written by a newer labkit (format {events[0]['version']}).")
    return events


def opened(path: str | os.PathLike) -> Any:
    """Open a record, a folder or a file, for reading bytes."""
    file = Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def event_on(line: bytes) -> dict[str, Any] | None:
    """Return the event on `line`, past what a killed writer left before it; None if unsound."""
    if len(line) > MAX_LINE:
        return None
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        return event_on(line[torn:]) if torn > 0 else None
    return event if _sound(event) else None


def _is_torn(line: bytes) -> bool:  # the front of an event whose writer was killed
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(HEAD)
    return False


def pipeline_of(knobs: dict[str, Any]) -> Pipeline:
    """Build a Pipeline from a record; raise RecordError where its values are not allowed."""
    try:
        return Pipeline(**{name: value for name, value in knobs.items() if name in KNOBS})
    except ValueError as error:
        raise RecordError(f"The record's pipeline is not valid: {error}") from None


class Watched(SimpleNamespace):
    """Stands where a run has its Pipeline: the knobs read off a user's loader, None for others."""

    simulated_delay = ""

    def __init__(self, loader: str, knobs: dict[str, Any]):
        named = {n: v for n, v in knobs.items() if n in KNOBS}
        plain = {n: v for n, v in named.items()
                 if isinstance(v, (bool, int)) or v in (KNOBS[n].choices or ())}  # fmt: skip
        super().__init__(loader=str(loader)[:80], **dict.fromkeys(KNOBS) | plain)

    def to_dict(self) -> dict[str, Any]:
        """Return every knob of a Pipeline; None where this loop's value is not known."""
        return {name: getattr(self, name) for name in KNOBS}

    def changed(self) -> dict[str, Any]:
        """Return what is known, the loader's type first."""
        known = {name: value for name, value in self.to_dict().items() if value is not None}
        return {"watched": self.loader, **known}

    def but(self, **changes: Any) -> Any:
        """Raise ValueError: labkit holds neither the data nor the model of a watched loop."""
        raise ValueError(
            "this run was watched, not made by labkit: change your own loader and watch it again."
        )
