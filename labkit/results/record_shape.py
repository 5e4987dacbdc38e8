"""What the events of a record must look like, so that whoever reads one may rely on it.

A record may come from anywhere. What is checked here is what readers use: keys that must be there
and their types (`MUST`), and types and ranges of those that may be missing or null (`MAY`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count


def number(value: Any) -> bool:
    """Whether `value` is a finite number."""
    if type(value) is int:
        return abs(value) < MOST
    return type(value) is float and math.isfinite(value)


def whole(value: Any) -> bool:
    """Whether `value` is a whole number within reason."""
    return type(value) is int and abs(value) < MOST


def count(value: Any) -> bool:
    """Whether `value` is a whole number from 0 up."""
    return type(value) is int and 0 <= value < MOST


def is_a(kind: type) -> Callable[[Any], bool]:
    """Return the check for a type."""
    return lambda value: isinstance(value, kind)


def list_of(check: Callable[[Any], bool], size: int | None = None) -> Callable[[Any], bool]:
    """Return the check for a list, of `size` values where given, that all pass `check`."""

    def passes(value: Any) -> bool:
        right = isinstance(value, list) and size in (None, len(value))
        return right and all(map(check, value))

    return passes


def numbers_by_name(value: Any) -> bool:
    """Whether `value` is a dictionary of numbers and gaps."""
    return isinstance(value, dict) and all(v is None or number(v) for v in value.values())


text, table, listed = is_a(str), is_a(dict), is_a(list)
stamps = list_of(whole, 2)

MUST: dict[str, dict[str, Callable[[Any], bool]]] = {
    "spec": {"version": whole, "run": text, "pipeline": table},
    "machine": {"device": text, "kind": text, "name": text, "versions": table},
    "job": {"pipeline": table, "not_applied": table},
    "stage": {"name": text},
    "begin": {"warmup": count},
    "epoch": {"step": count},
    "measurement": {"of": text, "case": table, "seconds": listed},
    "skipped": {"what": text, "why": text},
    "step": {"i": count, "t": list_of(whole, 4), "n": count},
    "error": {"kind": text, "message": text},
    "items": {"worker": whole, "rows": listed},
    "handoff": {"bytes": whole},
    "telemetry": {"t_ns": whole},
    "xray": {"steps": whole},
    "no_xray": {"why": text},
}
MAY: dict[str, dict[str, Callable[[Any], bool]]] = {
    "spec": {"watched": table, "utc": text},
    "machine": {
        **dict.fromkeys(
            ("cpu_name", "os", "uuid", "compute_capability", "driver", "pcie", "unused_gpu"), text
        ),
        **dict.fromkeys(
            ("memory_gib", "cpu_cores", "ram_gib", "shm_gib", "threads", "sm_count"), number
        ),
    },
    "job": {"unit": text},
    "stage": {"done": count, "total": count},
    "step": {"copy": stamps, "busy": stamps, "loss": number, "cpu": count},
    "error": {"traceback": text, "workers": table, "files": listed},
    "telemetry": {"gpu": list_of(list_of(number, 2)), "gpm": numbers_by_name},
    "memory": {"peak_bytes": count},
    "compiled": {"seconds": number},
    "end": {"stop": text, "code": whole, "why": text},
}
IF_THERE = {"spec": {"experiment": text, "params": table, "ranks": whole}}  # and then not null
NUMBERS = ("telemetry",)  # whose other values are numbers, or gaps


def sound(event: Any) -> bool:
    """Whether `event` is one, and everything in it is of the right shape."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    name = event["event"]
    must, may = MUST.get(name, {}), MAY.get(name, {})
    if not all(check(event.get(key)) for key, check in must.items()):
        return False
    if not all(check(event[key]) for key, check in may.items() if event.get(key) is not None):
        return False
    if not all(check(event[key]) for key, check in IF_THERE.get(name, {}).items() if key in event):
        return False
    rest = (event[key] for key in event if key not in may and key not in must and key != "event")
    if name in NUMBERS:
        return all(value is None or number(value) for value in rest)
    return all(number(value) for value in rest if type(value) in (int, float))
