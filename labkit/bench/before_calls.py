"""Tells of calls without standing between: no frame of ours is on the stack while they run.

Python looks a method up, and then calls what it has found. The first is all that is needed: what is
done then is over when the call begins. So errors, warnings and stacks read as without us.
"""

from __future__ import annotations

import _thread
import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


class Before:
    """In the place of a method: each time it is looked up on an object, `begin` is told first.

    `begin` takes the object, and returns what is called; None for the plain method.
    """

    def __init__(self, begin: Callable[[Any], Callable | None], plain: Any = None):
        self.begin = begin
        self.plain = plain

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self.plain
        try:
            called = self.begin(owner)
        except Exception:  # ours: the call is made as without us
            called = None
        return MethodType(self.plain, owner) if called is None else called


class OnSet:
    """In a class: what the attribute `name` of an object is set to goes through `then` first."""

    def __init__(self, name: str, then: Callable[[Any, Any], object]):
        self.name = name
        self.then = then

    def __set__(self, owner: object, value: object) -> None:
        kept = held(owner)
        try:
            kept[self.name] = self.then(owner, value)
        except Exception:  # ours
            kept[self.name] = value


class Call(functools.partial):
    """A call that tells `over` when it is over, however it ended: it is dropped then."""

    over: Callable[[], None]

    def __del__(self) -> None:
        try:
            self.over()
        except KeyboardInterrupt:  # which Python would only print here
            _thread.interrupt_main()


def held(thing: object) -> dict[str, Any]:
    """Return what an object has as its own attributes, without asking its class for any."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
