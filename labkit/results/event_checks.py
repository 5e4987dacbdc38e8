"""Checking an event of a log before a reader relies on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from labkit.results.event_shapes import EVENTS, AnyEvent, Telemetry, is_number

Check = Callable[[object], bool]


def is_sound(event: object) -> bool:
    """Return whether a line is an event, with what readers rely on as `EVENTS` has it."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    return fits(event, EVENTS.get(event["event"], AnyEvent))


def fits(values: object, shape: type) -> bool:
    """Return whether `values` has what a TypedDict says."""
    if not isinstance(values, dict):
        return False
    checks = _checks_of(shape)
    others = (value for key, value in values.items() if key not in checks)
    of_others = _is_gap if shape is Telemetry else _is_no_bad_number
    has_its_keys = all(check(values.get(key)) for key, check in checks.items())
    return has_its_keys and all(map(of_others, others))


def _is_gap(value: object) -> bool:
    """Return whether it is a number, or null where an instrument had none."""
    return value is None or is_number(value)


def _is_no_bad_number(value: object) -> bool:
    return type(value) not in (int, float) or is_number(value)


@functools.cache
def _checks_of(shape: type) -> dict[str, Check]:
    """Return the check of each key of a TypedDict."""
    hints = get_type_hints(shape, include_extras=True)
    return {key: _check_of(hint) for key, hint in hints.items()}


def _check_of(hint: Any) -> Check:
    """Return what tells whether a value of JSON is of a type; a missing one is None."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin is Annotated:
        return parts[1]
    if origin is Literal:
        return lambda value: value in parts
    if is_typeddict(hint):
        return lambda value: fits(value, hint)
    if origin is None:
        return lambda value: isinstance(value, hint)
    checks = [_check_of(part) for part in parts]
    if origin in (Union, UnionType):
        first, second = checks
        return lambda value: first(value) or second(value)
    if origin is tuple:
        return lambda value: _is_list_of(value, checks)
    check = checks[-1]
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_list_of(value: object, checks: list[Check]) -> bool:
    """Return whether it is a list of so many values, each as its check wants it."""
    if not isinstance(value, list) or len(value) != len(checks):
        return False
    return all(check(each) for check, each in zip(checks, value, strict=True))
