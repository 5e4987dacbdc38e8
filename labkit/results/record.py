"""Reading an event log: as it grows, or from a record, checked before anything uses it.

A record (a folder, a .jsonl or .jsonl.gz file) may come from anywhere: loading one runs no code,
and what readers rely on is checked here (`SHAPES`).
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.process.events import FILE_NAME, VERSION
from labkit.results.result import printable
from labkit.spec import KNOBS, Pipeline

# Bounds on a record. `MAX_BYTES` are of its text, unpacked: about 15 million steps. The numbers of
# a real one pack to a fifth, a bomb to a thousandth; so small a text as `ROOM` may be either.
MAX_BYTES = 2 * 2**30
MAX_LINE = 2**20
MAX_RATIO, ROOM = 50, 2**20
MAX_EMPTY = 10_000  # lines that are empty or torn: a killed writer leaves one
MAX_OTHERS = 1_000_000  # events that are not steps
MAX_NAMES = 100  # of different events
MAX_RANKS = 64  # of one machine
NO_SPEC = "not a labkit record: it does not begin with a spec"
HEAD = b'{"event":'
# In a line of JSON: an escape, or bytes of UTF-8, either of which may be what `printable` replaces
MAY_STEER = re.compile(rb"\\[ubfr]|[\x7f-\xff]")
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


def _processes(value: Any) -> bool:
    named = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return named and all(
        isinstance(each.get("name"), str)
        and _count(each.get("pid"))
        and _number(each.get("cores", 0))
        for each in value
    )


# {event: [(a type or a check, the keys that it is for)]}; one with ? may be missing or null
SHAPES: dict[str, list[tuple[Any, str]]] = {
    "spec": [
        (_whole, "version"), (str, "run utc? experiment? measure?"),
        (dict, "pipeline watched? params?"),
        (_list_of(lambda point: isinstance(point, dict)), "points?"),
        (lambda value: _count(value) and value <= MAX_RANKS, "ranks?"), (bool, "no_sync?"),
        (_dict_of(lambda knobs: isinstance(knobs, dict)), "starve?"), (_dict_of(_count), "place?"),
    ],
    "machine": [
        (str, "device kind name cpu_name? os? uuid? compute_capability? driver? pcie? unused_gpu? "
         "cores_limit?"),
        (_number, "memory_gib? cpu_cores? host_cores? ram_gib? shm_gib? threads? sm_count?"),
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
    "suspended": [(lambda value: _number(value) and value >= 0, "seconds")],
    "lines": [(_count, "pid"), (_dict_of(lambda p: isinstance(p, list)), "places"), (list, "rows")],
    "no_lines": [(str, "why")],
    "handoff": [(_whole, "bytes")],
    "telemetry": [
        (_whole, "t_ns"), (_list_of(_list_of(_number, 2)), "gpu?"),
        (_dict_of(_number_or_gap), "gpm?"),
    ],
    "beside": [(_processes, "processes")],
    "on_the_card": [(_processes, "processes")],
    "measurement": [(str, "of"), (dict, "case"), (list, "seconds")],
    "row": [(dict, "values"), (list, "seconds?"), (str, "error?")],
    "skipped": [(str, "what why")],
    "work": [
        (_count, "flops bytes held_bytes parameters samples cache_bytes?"), (str, "precision"),
        (_dict_of(_number), "roof?"),
    ],
    "memory": [(_count, "peak_bytes?")],
    "clock": [(str, "why")],
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
    rank = rest.pop("of_rank", 0)
    if not (_count(rank) and rank < MAX_RANKS):
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
    return list(events_of(path))


def events_of(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yield the events of a record one by one; raise RecordError on anything that is not one.

    However little the file is and whatever it unpacks to, the work ends at the bounds above.
    """
    refuse = partial(_refuse, path)
    names: Counter = Counter()  # of the events so far
    empty = 0
    try:
        with opened(path) as stream:
            for number, line in enumerate(_lines_of(stream, refuse), 1):
                event = event_on(line)
                if event is None:
                    if line.strip() and not _is_torn(line):
                        refuse("not an event of a labkit record", number)
                    empty += 1
                    if empty > MAX_EMPTY:
                        refuse(f"more than {MAX_EMPTY:,} lines without an event", number)
                    continue
                if not names:
                    _check_spec(event, refuse)
                names[event["event"]] += 1
                if names.total() - names["step"] > MAX_OTHERS:
                    refuse(f"more than {MAX_OTHERS:,} events that are not steps", number)
                if len(names) > MAX_NAMES:
                    refuse(f"events of more than {MAX_NAMES} kinds", number)
                yield event
    except FileNotFoundError:
        raise RecordError(f"{path}: no record here; give a folder or a .jsonl file.") from None
    except BROKEN as error:
        raise RecordError(f"{path}: cannot be read ({error}).") from None
    if not names:
        refuse(NO_SPEC)


def _refuse(path: str | os.PathLike, what: str, number: int | None = None) -> None:
    where = "" if number is None else f", line {number}"
    raise RecordError(f"{path}{where}: {what}.")


def _check_spec(event: dict[str, Any], refuse: Callable) -> None:
    if event["event"] != "spec":
        refuse(NO_SPEC)
    if event["version"] > VERSION:
        refuse(f"written by a newer labkit (format {event['version']})")


def _lines_of(stream: Any, refuse: Callable) -> Iterator[bytes]:
    """Yield the whole lines of a record; what follows the last of them is torn, or nothing."""
    packed = getattr(stream, "fileobj", None)  # what a gzip stream unpacks
    size = 0
    checked = 0
    while (line := stream.readline(MAX_LINE + 1)).endswith(b"\n"):
        size += len(line)
        if size - checked > ROOM:
            checked = size
            if packed is not None and size > ROOM + MAX_RATIO * packed.tell():
                refuse(f"unpacks to more than {MAX_RATIO} times its size: no record does")
        if size > MAX_BYTES:
            refuse(f"cannot be read (larger than {MAX_BYTES // 2**20} MiB)")
        yield line[:-1]
    if len(line) > MAX_LINE:
        refuse(f"a line is longer than {MAX_LINE // 2**10} KiB")


def opened(path: str | os.PathLike) -> Any:
    """Open a record, a folder or a file, for reading bytes."""
    file = record_file(path)
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def record_file(path: str | os.PathLike) -> Path:
    """Return the file that holds a record: in a run's folder its log, else `path` itself."""
    return Path(path) / FILE_NAME if os.path.isdir(path) else Path(path)


def is_record(path: str | os.PathLike) -> bool:
    """Whether a file begins as a record does, whatever follows."""
    try:
        with opened(path) as file:
            first = event_on(file.readline(MAX_LINE))
    except BROKEN:
        return False
    return first is not None and first["event"] == "spec"


def event_on(line: bytes) -> dict[str, Any] | None:
    """Return the event on `line`, past what a killed writer left before it; None if unsound."""
    if len(line) > MAX_LINE:
        return None
    try:
        event = STRICT.decode(line.decode())
    except (ValueError, RecursionError):
        torn = line.rfind(HEAD)  # within a JSON text its quotes would be escaped
        return event_on(line[torn:]) if torn > 0 else None
    if not _sound(event):
        return None
    return _shown(event) if MAY_STEER.search(line) else event


def _shown(value: Any) -> Any:
    """Return a value of JSON with all its text printable: names in a record are anybody's."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {printable(key): _shown(each) for key, each in value.items()}
    return value


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
