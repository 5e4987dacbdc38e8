"""What grows from step to step in somebody else's loop: a list that is kept, a graph of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, cast

from labkit.bench import stack
from labkit.bench.batch_contents import is_array

if TYPE_CHECKING:
    from torch.autograd.graph import Node

SIZED = (list, dict, set, deque)
LEAST_GROWN = 32  # entries, or additions in a graph: what is smaller is no growth
DEEP = 64  # additions behind a tensor that are followed
RISES = 3  # looks in a row at which it was larger: what is emptied now and then is no growth


class Grown(TypedDict):
    """A variable that grows, as the `growth` event holds it."""

    name: str
    graph: bool  # whether it keeps autograd's graph of each step
    before: int  # entries, or additions in the graph
    after: int
    bytes: int | None
    file: str
    function: str
    line: int


@dataclass
class Seen:
    """What a variable was when it was looked at last, and how it came to that."""

    first_size: int
    size: int
    step: int
    first_entry: Callable[[], object]  # returns what a container begins with, while that lives
    rises: int = 0

    def goes_on(self, value: object, size: int, step: int) -> bool:
        """Return whether `value` is what this was, kept and perhaps made larger.

        A list that is made anew, as for each episode, begins with another entry. A sum that runs
        on has at least one more addition behind it for each step, up to DEEP.
        """
        if size < self.size:
            return False
        if _is_sized(value):
            return self.first_entry() is _first(value)
        return size == DEEP or size - self.size >= step - self.step


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.seen: dict[str, Seen] = {}
        self.found: dict[str, Grown] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None, step: int) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs, at a step."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        if frame is None or loop is None:
            return
        for name, value in stack.variables(frame).items():
            is_graph, size = _size(value)
            if not size or name.startswith("_"):
                continue
            seen = self.seen.get(name)
            if seen is None or not seen.goes_on(value, size, step):
                self.seen[name] = Seen(size, size, step, _reference(_first(value)))
                self.found.pop(name, None)
                continue
            seen.rises += size > seen.size or size == DEEP
            seen.size = size
            seen.step = step
            if seen.rises >= RISES and size >= max(LEAST_GROWN, 2 * seen.first_size):
                self.found[name] = {
                    "name": name,
                    "graph": is_graph,
                    "before": seen.first_size,
                    "after": size,
                    "bytes": _bytes_of(value),
                    "file": loop.co_filename,
                    "function": loop.co_name,
                    "line": _line_of(name, loop),
                }


def _size(value: object) -> tuple[bool, int]:
    """Return whether it holds a graph, and entries of a container or additions behind a tensor."""
    if _is_sized(value):
        return _graph_of(_last(value)) is not None, len(value)
    depth = 0
    nodes = [_graph_of(value)]
    while depth < DEEP:
        node = next((each for each in nodes if type(each).__name__.startswith("AddBackward")), None)
        if node is None:
            break
        depth += 1
        nodes = [before for before, _ in node.next_functions]
    return True, depth


def _is_sized(value: object) -> TypeGuard[list | dict | set | deque]:
    """Return whether it is a container whose length is asked for without running any code."""
    return type(value) in SIZED


def _first(value: object) -> object:
    """Return what a container begins with, and that in turn: no container that Python has built in.

    None of a set, which has no order, and of what is empty.
    """
    while _is_sized(value) or type(value) is tuple:
        if not value or isinstance(value, set):
            return None
        value = next(iter(value.values())) if isinstance(value, dict) else next(iter(value))
    return value


def _reference(entry: object) -> Callable[[], object]:
    """Return what gives `entry` back while it lives; only numbers and text are kept alive by it."""
    try:
        return weakref.ref(entry)
    except TypeError:
        is_small = type(entry).__module__ in ("builtins", "numpy")
        return (lambda: entry) if is_small else lambda: None


def _last(entries: list | dict | set | deque) -> object:
    """Return the last entry; None of a set, which has no order, and of what is empty."""
    if not entries or isinstance(entries, set):
        return None
    return next(reversed(entries.values() if isinstance(entries, dict) else entries))


def _bytes_of(value: object) -> int | None:
    """Return about how many bytes a container's entries hold, by its last one; None if unknown."""
    if not _is_sized(value):
        return None
    last = _last(value)
    if last is None:
        return None
    parts = last if type(last) in (list, tuple) else [last]
    return len(value) * sum(map(_bytes, cast(list, parts)))


def _bytes(part: Any) -> int:
    """Return the bytes of the host's memory: of an array's numbers, or of another object alone."""
    if not is_array(part):
        return object.__sizeof__(part)
    return 0 if stack.is_a(part, "torch", "Tensor") and not part.is_cpu else part.nbytes


def _graph_of(value: Any) -> Node | None:
    """Return a tensor's `grad_fn`; None of everything else, whose attributes may be code."""
    return value.grad_fn if is_array(value) and stack.is_a(value, "torch", "Tensor") else None


def _line_of(name: str, code: CodeType) -> int:
    """Return the line of the loop's function that makes `name` larger, as far as its text tells."""
    named = rf"(?<![\w.]){re.escape(name)}(?:\[[^\]]*\])?"
    grows = re.compile(rf"{named}(?:\.(?:append|extend|add|update|insert)\(|\s*\+?=)")
    lines = linecache.getlines(code.co_filename)
    found = code.co_firstlineno
    for *_, number in code.co_lines():
        if number and found < number <= len(lines) and grows.search(lines[number - 1]):
            found = number
    return found
