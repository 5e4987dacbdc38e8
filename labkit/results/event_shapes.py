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
from collections.abc import Callable
from pathlib import Path

TABLE = Path(__file__).parents[1] / "data" / "events.csv"
MOST = 2**62  # of a number: a time in ns, a size in bytes, a count
LONGEST = {"text": 10_000, "lines": 2**18}  # characters, where the table has no number
PLAIN = {
    "step",
    "epoch",
    "pass",
    "saved",
    "paused",
    "suspended",
    "telemetry",
    "beside",
    "on_the_card",
}
MANY = PLAIN | {"items", "lines", "row", "done", "end"}  # of which a long run has many

Check = Callable[[object], bool]


def is_number(value: object, least: float = -MOST, most: float = MOST) -> bool:
    """Return whether it is a number that is finite, and within its range."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and least <= value <= most


def _is_gap(value: object) -> bool:
    """Return whether it is a number, or null where an instrument had none."""
    return value is None or is_number(value)


def _is_no_bad_number(value: object) -> bool:
    return type(value) not in (int, float) or is_number(value)


def _is_plain(value: object) -> bool:
    return not isinstance(value, (dict, list)) and _is_no_bad_number(value)


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
    if isinstance(values, list) and "0" in checks:
        by_place = {str(place): value for place, value in enumerate(values)}
        is_known = by_place.keys() <= checks.keys()
        return is_known and all(check(by_place.get(key)) for key, check in checks.items())
    if not isinstance(values, dict) or "0" in checks:
        return False
    of_others = _is_plain if shape in PLAIN else _is_no_bad_number
    if shape == "telemetry":
        of_others = _is_gap
    others = (value for key, value in values.items() if key not in checks)
    has_its_keys = all(check(values.get(key)) for key, check in checks.items())
    return has_its_keys and all(map(of_others, others))


def wrong_key(event: object) -> str:
    """Return in words what the table says of a key that an event has otherwise; "" of none."""
    if not isinstance(event, dict):
        return ""
    for row in _rows():
        key = row["key"]
        if row["event"] == event.get("event") and not _checks()[row["event"]][key](event.get(key)):
            limits = f" ({row['least']} to {row['most']})" if row["most"] else ""
            return f": its {key!r} is no {row['what'].rstrip('?')}{limits}"
    return ""


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
        what = row["what"].removesuffix("?")
        check = _check(what, row["least"], row["most"])
        checks[row["event"]][row["key"]] = check if what == row["what"] else _or_missing(check)
    return {shape: checks["any"] | keys for shape, keys in checks.items()}


def _or_missing(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _check(what: str, least: str = "", most: str = "") -> Check:
    """Return what tells whether a value of JSON is what the table says."""
    kind, _, of = what.partition(":")
    low = float(least or (0 if kind == "count" else -MOST))
    high = float(most or LONGEST.get(kind, MOST))
    if kind == "number":
        return lambda value: is_number(value, low, high)
    if kind in ("whole", "count"):
        return lambda value: type(value) is int and low <= value <= high
    if kind in LONGEST:
        return lambda value: isinstance(value, str) and len(value) <= high
    if kind not in ("list", "object"):
        return OTHERS.get(kind) or (lambda value: fits(value, kind))
    inner = _check(of) if of else None

    def is_container(value: object) -> bool:
        if not isinstance(value, (list, dict)) or isinstance(value, dict) == (kind == "list"):
            return False
        held = value.values() if isinstance(value, dict) else value
        return low <= len(value) <= high and (inner is None or all(map(inner, held)))

    return is_container


OTHERS: dict[str, Check] = {
    "flag": lambda value: isinstance(value, bool),
    "unit": lambda value: value in ("samples", "batches"),
    "index": lambda value: isinstance(value, (int, str)),  # of an item, or its key
    "gap": _is_gap,
}
