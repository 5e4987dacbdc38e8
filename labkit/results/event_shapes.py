"""What an event of a log has to look like, so that readers can rely on it.

`labkit/data/events.json` says it: {event: {kind of value: the keys that hold one}}. A key with ?
may be missing or null, and "*" stands for all that are not named. The kinds are those of `CHECKS`,
the names of `events.json` (a dict of that shape), and "list of KIND", "dict of KIND" (its values),
"4 of KIND" (a list of four).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.bench.loader_rows import BatchRow
from labkit.results.shipped import entries

MAX_RANKS = 64  # of one machine
MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count
BATCH_NUMBERS = len(BatchRow._fields) - 1  # before the slowest item's index
OTHERS = "*"

Check = Callable[[object], bool]


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < MOST


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_number(value: object) -> bool:
    return _is_whole(value) or (type(value) is float and math.isfinite(value))


def _is_gap(value: object) -> bool:
    """Return whether it is a number, or null where an instrument had none."""
    return value is None or _is_number(value)


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and _is_number(value) and value >= 0


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_RANKS


def _is_unit(value: object) -> bool:
    return value in ("samples", "batches")


def _is_place(value: object) -> bool:
    """Return whether it is a sampled place, see `bench.places.Place`."""
    match value:
        case [str(), str(), str(), int(), str(), str(), *around]:
            return 1 <= len(around) <= 2 and all(map(_is_where, around))
    return False


def _is_where(value: object) -> bool:
    match value:
        case None | [str(), int(), str()]:
            return True
    return False


def _is_batch(value: object) -> bool:
    """Return whether it is a `BatchRow`."""
    match value:
        case [*numbers, int() | str()]:
            return len(numbers) == BATCH_NUMBERS and all(map(_is_count, numbers))
    return False


def _is_slow_item(value: object) -> bool:
    """Return whether it is an item's time, its index and its batch."""
    match value:
        case [took_ns, int() | str(), batch]:
            return _is_count(took_ns) and _is_count(batch)
    return False


def _is_no_bad_number(value: object) -> bool:
    return type(value) not in (int, float) or _is_number(value)


def _is_a(kind: type) -> Check:
    """Return the check of a plain type."""
    return lambda value: isinstance(value, kind)


CHECKS: dict[str, Check] = {
    "text": _is_a(str),
    "dict": _is_a(dict),
    "list": _is_a(list),
    "switch": _is_a(bool),
    "whole": _is_whole,
    "count": _is_count,
    "number": _is_number,
    "gap": _is_gap,
    "duration": _is_duration,
    "rank": _is_rank,
    "unit": _is_unit,
    "place": _is_place,
    "batch": _is_batch,
    "slow item": _is_slow_item,
}


def _or_missing(check: Check) -> Check:
    return lambda value: value is None or check(value)


COMMON = {"of_rank": _or_missing(_is_rank), OTHERS: _is_no_bad_number}


def _check_of(kind: str) -> Check:
    """Return the check of a kind of value, as `events.json` names it."""
    if kind in CHECKS:
        return CHECKS[kind]
    if kind in SHAPES:
        return lambda value: fits(value, kind)
    container, inner = kind.split(" of ", 1)
    check = _check_of(inner)
    if container == "dict":
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    size = None if container == "list" else int(container)

    def is_such_list(value: object) -> bool:
        if not isinstance(value, list) or size not in (None, len(value)):
            return False
        return all(map(check, value))

    return is_such_list


def _rules_of(shape: dict[str, str]) -> dict[str, Check]:
    """Return {key: the check of its value} of an event."""
    rules = dict(COMMON)
    for kind, keys in shape.items():
        check = _check_of(kind)
        for key in keys.split():
            name = key.rstrip("?")
            rules[name] = check if name == key else _or_missing(check)
    return rules


SHAPES = entries("events.json")
RULES = {name: _rules_of(shape) for name, shape in SHAPES.items()}


def fits(values: object, name: str) -> bool:
    """Return whether `values` has the shape of that name, with what readers rely on."""
    if not isinstance(values, dict):
        return False
    rules = RULES.get(name, COMMON)
    has_what_it_must = all(check(values.get(key)) for key, check in rules.items())
    others = (value for key, value in values.items() if key not in rules)
    return has_what_it_must and all(map(rules[OTHERS], others))


def is_sound(event: object) -> bool:
    """Return whether a line is an event, with what readers rely on as `events.json` has it."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    return fits(event, event["event"])
