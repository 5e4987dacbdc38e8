"""What an event of a log has to look like, so that readers can rely on it.

`labkit/data/events.json` says it: {event: {kind of value: the keys that hold one}}. A key with ?
may be missing or null. The kinds are those of `CHECKS`, and "list of KIND", "dict of KIND" (its
values), "4 of KIND" (a list of four).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.results.shipped import entries

MAX_RANKS = 64  # of one machine
MOST = 2**62  # of a whole number: a time in ns, a size in bytes, a count

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


def _is_process(value: object) -> bool:
    """Return whether it names a process of the machine, with the cores it used where known."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and _is_count(value.get("pid"))
        and _is_number(value.get("cores", 0))
    )


def _is_place(value: object) -> bool:
    """Return whether it is a sampled place, see `bench.places.Place`."""
    match value:
        case [str(), str(), str(), int(), str(), str(), None | [str(), int(), str()]]:
            return True
    return False


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
    "process": _is_process,
    "place": _is_place,
}


def _check_of(kind: str) -> Check:
    """Return the check of a kind of value, as `events.json` names it."""
    if kind in CHECKS:
        return CHECKS[kind]
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


def _rules_of(shape: dict[str, str]) -> list[tuple[str, Check]]:
    """Return (key, its check) for each key of an event."""
    return [(key, _check_of(kind)) for kind, keys in shape.items() for key in keys.split()]


RULES = {event: _rules_of(shape) for event, shape in entries("events.json").items()}


def is_sound(event: object) -> bool:
    """Return whether a line is an event, with what readers rely on as `events.json` has it."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    rest = dict(event)  # what no rule is about: only its numbers are checked
    name = rest.pop("event")
    for key, check in RULES.get(name, ()):
        value = rest.pop(key.rstrip("?"), None)
        may_lack = value is None and key.endswith("?")
        if not may_lack and not check(value):
            return False
    if not _is_rank(rest.pop("of_rank", 0)):
        return False
    is_free = name != "telemetry"  # to hold something other than numbers and gaps
    return all(
        _is_gap(value) or (is_free and type(value) not in (int, float)) for value in rest.values()
    )
