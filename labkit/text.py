"""Words and numbers in texts for people, and what a terminal must not be sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# What may steer a terminal, hide text or turn its direction, and what no terminal can show
STEERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
BREAKS = re.compile(r"[\t\n]")  # what sets out a text of several lines
MOST_IN_A_LINE = 10_000  # characters of a text that is part of one


def printable(text: str) -> str:
    """Return `text` with every character that a terminal might obey as its escape: "\\x1b"."""
    return STEERS.sub(_escape, text)


def one_line(text: str) -> str:
    """Return `text` as a part of one line: what breaks it or steers a terminal as its escape."""
    return BREAKS.sub(_escape, printable(text[:MOST_IN_A_LINE]))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def with_texts(value: Any, change: Callable[[str], str], of_key: Callable[[Any], str] = str) -> Any:
    """Return a value of JSON with every text in it changed, and every key of a dict by `of_key`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [with_texts(each, change, of_key) for each in value]
    if isinstance(value, dict):
        return {of_key(key): with_texts(each, change, of_key) for key, each in value.items()}
    return value


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 step", "2 steps"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def percent(share: float | None) -> str | None:
    """Return a share in two digits: 26%, 5.6%; None of None."""
    if share is None:
        return None
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"
