"""Tells of calls without standing between: no frame of ours is on the stack while they run.

Python looks a method up, and then calls what it has found. The first is all that is needed: what is
done then is over when the call begins. So errors, warnings and stacks read as without us.
"""

from __future__ import annotations

import _thread
import functools
import operator
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from labkit.stamps.interrupts import OwnErrors, signal_of


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
        called = None
        with OwnErrors():  # then the call is made as without us
            called = self.begin(owner)
        return MethodType(self.plain, owner) if called is None else called


class Call(functools.partial):
    """A call that tells `over` when it is over, however it ended: it is dropped then.

    What a signal's handler raises while an object is dropped, Python would only print. So nothing
    of Python's that could be interrupted stands around `over`.
    """

    end: Callable[[], object]
    __del__ = property(operator.attrgetter("end"))  # in C: looked up, then called without arguments

    @classmethod
    def of(cls, called: Callable, *given: object, over: Callable[[], None]) -> Call:
        """Return what calls `called` with what is `given`, and what it gets itself."""
        ending = _ending(over)
        next(ending)
        call = cls(called, *given)
        call.end = map(operator.methodcaller("__call__"), ending).__next__
        return call


def _ending(over: Callable[[], None]) -> Iterator[Callable[[], object]]:
    """Call `over` when asked the second time; give what is to be called then, in C.

    That raises the signal again whose handler broke in, and Python calls it in the loop's code.
    """
    again: Callable[[], object] = int  # does nothing
    try:
        yield from (int,)  # here no handler is called when it goes on, as it would be by `yield`
        over()
    except GeneratorExit:
        raise  # it was never asked
    except BaseException as error:
        number = signal_of(error)
        if number is not None:
            again = functools.partial(_thread.interrupt_main, number)
    yield from (again,)


def attributes_of(thing: object) -> dict[str, Any]:
    """Return what an object has as its own attributes, without asking its class for any."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
