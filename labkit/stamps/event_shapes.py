"""What an event of a log has to look like and how large it may be, so that readers can rely on it.

`data/events.csv` is the table: a row a key, with what it holds, and its range; of a text or a list,
how long it may be. Behind a colon stands what a list or an object holds; a "?" says that the key
may be missing, or null. What the table does not have may be anything but a number that is not
finite or too large, and in an event of `PLAIN` holds nothing in turn.
"""

from __future__ import annotations

import csv
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "data" / "events.csv"
MOST = 2**62  # of a number: a time in ns, a size in bytes, a count
LONGEST = {"text": 10_000, "lines": 2**18}  # characters, where the table has no number
# Events of which a long run has many
PLAIN = {
    "step",
    "epoch",
    "pass",
    "saved",
    "telemetry",
    "beside",
    "on_the_card",
}

Check = Callable[[object], bool]


def is_sound(event: object) -> bool:
    """Return whether a line is an event, with what readers rely on as the table has it."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    return fits(event, event["event"])


def fits(values: object, shape: str) -> bool:
    """Return whether `values` has what the table says of an event, or of a part of one.

    What the table has by position is a list, everything else an object.
    """
    checks = _checks().get(shape) or _checks()["any"]
    by_place = "0" in checks
    if isinstance(values, list) and by_place:
        values = {str(place): value for place, value in enumerate(values)}
    elif not isinstance(values, dict) or by_place:
        return False
    others = [value for key, value in values.items() if key not in checks]
    if (by_place and others) or not all(check(values.get(key)) for key, check in checks.items()):
        return False
    return all(_is_harmless(value, shape) for value in others)


def fields_in(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of the fields of a dataclass; keys of other versions are left out."""
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


def _is_harmless(value: object, shape: str) -> bool:
    """Return whether a value that the table does not have harms no reader."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _is_number(value, -MOST, MOST)
    if shape == "telemetry":
        return value is None
    return shape not in PLAIN or not isinstance(value, (dict, list))


def _is_number(value: object, low: float, high: float) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and low <= value <= high


@functools.cache
def keys_of_lines(event: str) -> list[str]:
    """Return the keys of an event whose text may have several lines."""
    return [row["key"] for row in _rows() if row["event"] == event and "lines" in row["what"]]


@functools.cache
def _rows() -> list[dict[str, str]]:
    return list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


@functools.cache
def _checks() -> dict[str, dict[str, Check]]:
    """Return the check of each key of each event."""
    checks: dict[str, dict[str, Check]] = defaultdict(dict)
    for row in _rows():
        checks[row["event"]][row["key"]] = _check(row["what"], row["least"], row["most"])
    return {shape: checks["any"] | keys for shape, keys in checks.items()}


def _check(what: str, least: str = "", most: str = "") -> Check:
    """Return what tells whether a value of JSON is what the table says."""
    kind, _, of = what.removesuffix("?").partition(":")
    low = float(least or (0 if kind == "count" else -MOST))
    high = float(most or LONGEST.get(kind, MOST))
    inner = _check(of) if of else None

    def is_so(value: object) -> bool:
        if value is None and (what.endswith("?") or kind == "gap"):
            return True
        if kind in ("number", "gap"):
            return _is_number(value, low, high)
        if kind in ("whole", "count"):
            return type(value) is int and low <= value <= high
        if kind in LONGEST:
            return isinstance(value, str) and len(value) <= high
        if kind in ("list", "object"):
            if type(value) is not (list if kind == "list" else dict):
                return False
            held = value.values() if isinstance(value, dict) else value
            return low <= len(value) <= high and (inner is None or all(map(inner, held)))
        if kind in TYPES:
            return isinstance(value, TYPES[kind])
        return fits(value, kind)

    return is_so


TYPES = {"flag": bool, "index": (int, str)}  # an item's index, or its key
