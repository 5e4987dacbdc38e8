"""Making a record fit to ship: nothing personal in it, and small enough to come with the package.

What is kept is listed event by event, so that what nobody thought of is left out.
"""

from __future__ import annotations

import getpass
import gzip
import json
import platform
import re
from pathlib import Path
from typing import Any

from labkit.results.record import read_record

MOST_STEPS = 600  # the first so many: a stretch as it was, since thinned steps would have no teeth
MOST_ITEM_ROWS = 400
MOST_TELEMETRY = 400

# {event: its keys; None = all of them}. Kept out: pids, the card's UUID, paths, tracebacks.
KEPT: dict[str, tuple[str, ...] | None] = {
    "spec": ("version", "run", "utc", "labkit", "pipeline", "experiment", "params", "script"),
    "machine": (
        "device", "kind", "name", "memory_gib", "cpu_name", "cpu_cores", "ram_gib", "shm_gib",
        "threads", "os", "sm_count", "compute_capability", "driver", "pcie", "versions",
    ),
    "job": ("pipeline", "not_applied"),
    "samples": None, "begin": None, "epoch": None, "step": None, "items": None, "handoff": None,
    "measurement": None, "skipped": None, "memory": None, "telemetry": None, "drift": None,
    "compiled": None, "lost": None, "xray": None, "xray_trace": None, "no_xray": None,
    "error": ("kind", "message"), "done": None, "stopped": None, "end": None,
}  # fmt: skip
PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+){2,}")


def ship(source: Path, target: Path, *, name: str, title: str) -> Path:
    """Write the record at `source` to `target` (.jsonl.gz), fit to ship; return `target`.

    Args:
        source: A record: a folder or a file.
        target: The file to write.
        name: What the record is called: letters, digits, - and _.
        title: What it shows, in a few words.

    Raises:
        RecordError: `source` is not a record.
    """
    events = list(_kept(read_record(source)))
    events[0] |= {"name": name, "title": title}
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    with gzip.GzipFile(unfinished, "wb", mtime=0) as file:
        for event in events:
            file.write(json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n")
    unfinished.replace(target)  # an interrupt leaves no half record
    return target


def _kept(events: list[dict[str, Any]]) -> Any:
    """Yield the events that are shipped, in order, cleaned and thinned."""
    steps = sum(event["event"] == "step" for event in events)
    done = rows = samples = 0
    for event in events:
        kind = event["event"]
        if kind not in KEPT:
            continue
        if kind == "step":
            done += 1
            if done == MOST_STEPS + 1:
                yield {"event": "thinned", "t_ns": event["t"][0], "steps": steps}
            if done > MOST_STEPS:
                continue
        elif kind == "items":
            event = {**event, "rows": event["rows"][: max(0, MOST_ITEM_ROWS - rows)]}
            rows += len(event["rows"])
        elif kind == "telemetry":
            samples += 1
            if samples > MOST_TELEMETRY or done > MOST_STEPS:
                continue
        keys = KEPT[kind]
        if keys is not None:
            event = {key: event[key] for key in ("event", "t_ns", *keys) if key in event}
        yield _clean(event)


def _clean(value: Any) -> Any:
    """Take paths, the user's and the machine's name out of every text."""
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value] if any(_holds(v) for v in value) else value
    return _without_names(value) if isinstance(value, str) else value


def _holds(value: Any) -> bool:
    return isinstance(value, (str, dict, list))


def _without_names(text: str) -> str:
    text = PATH.sub("<path>", text)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text)
    return text


def _names() -> list[str]:
    """The names that say whose machine it is; "root" and the like say nothing."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = ""
    found = {user, platform.node(), platform.node().split(".")[0]}
    return [name for name in found if len(name) > 1 and name not in ("root", "localhost")]
