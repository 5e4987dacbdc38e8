"""The last result of a function, as in `lk.run.last`: an interrupted call returns none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Kept = TypeVar("Kept")


def remember(function: Callable[..., object], result: Kept) -> Kept:
    """Keep a result as `function.last`, and return it."""
    vars(function)["last"] = result
    return result
