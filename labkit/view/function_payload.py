"""A function of the user's on its way to the bench, with what it uses of its notebook."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

from labkit.bench import triton_kernels
from labkit.orders import Asked, UserSource
from labkit.results.launch import Launched
from labkit.results.payload import CannotSend, pickled, place, sizes_of

MOST_MIB = 64  # of a function with what it refers to


def signature_of(function: Callable[..., object]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return a function's name, its arguments after the bench, and those without a default."""
    if not isinstance(function, FunctionType):
        raise ValueError(f"{function!r} is not a function: give one that takes (bench, ...).")
    arguments = list(inspect.signature(function).parameters.values())
    if not arguments:
        raise ValueError(f"{function.__name__}() takes no argument: the first is the bench.")
    others = arguments[1:]  # after the bench
    names = tuple(each.name for each in others)
    needed = tuple(each.name for each in others if each.default is inspect.Parameter.empty)
    return function.__name__, names, needed


class FunctionPayload:
    """A function on its way to the bench, as `launch` takes it for a `source`."""

    def __init__(self, function: FunctionType):
        triton_kernels.allow()
        refers_to = referred_to(function)
        for name, value in refers_to.items():
            if getattr(value, "is_cuda", False) is True:
                raise ValueError(
                    f"{function.__name__} uses {name}, a tensor on the GPU: make it inside, on "
                    "bench.device."
                )
        others = [each for each in refers_to.values() if isinstance(each, FunctionType)]
        functions = [function, *others]
        code = {each.__name__: linecache.getlines(each.__code__.co_filename) for each in functions}
        try:
            self.pickled = pickled((function, code))
        except Exception as error:  # whatever the user's objects raise
            why = f"{culprit_of(function, refers_to)} cannot be sent to another process"
            raise ValueError(f"{why}: {error}") from None
        mib = len(self.pickled) / 2**20
        if mib > MOST_MIB:
            raise ValueError(
                f"{function.__name__} takes {mib:.0f} MiB of data along (at most {MOST_MIB}): make "
                "what is large inside."
            )

    def place(self, folder: Path) -> UserSource:
        """Write the function into the run's folder, for its owner alone; return where it is."""
        return place(folder, self.pickled)

    def described(self, spec: Launched) -> Asked:
        """Return what the run's first event tells."""
        return spec.to_spec()


def culprit_of(function: FunctionType, refers_to: dict[str, object]) -> str:
    """Name what cannot be sent: the first thing a function refers to that cannot."""
    try:
        sizes_of(refers_to)
    except CannotSend as found:
        return f"{found.name}, which {function.__name__} uses,"
    return function.__name__


def referred_to(function: FunctionType) -> dict[str, object]:
    """Return what a function uses of its notebook, by name; modules are left out."""
    found = inspect.getclosurevars(function)
    values = {**found.globals, **found.nonlocals}
    return {name: value for name, value in values.items() if not isinstance(value, ModuleType)}
