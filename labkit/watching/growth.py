"""What grows from step to step in somebody else's loop: a list that is kept, a graph of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, cast

from labkit.bench import stack
from labkit.bench.batch_contents import is_array
from labkit.bench.before_calls import held

if TYPE_CHECKING:
    from torch.autograd.graph import Node

SIZED = (list, dict, set, deque)
MOST_PARTS = 256  # of a dict: a cache of a million entries is not walked through
LEAST_GROWN = 32  # entries, or steps whose graphs are kept: what is smaller is no growth
RISES = 3  # looks in a row at which it was larger: what is emptied now and then is no growth


class Grown(TypedDict):
    """A variable that grows, as the `growth` event holds it."""

    name: str
    graph: bool  # whether it keeps autograd's graph of each step
    before: int  # entries, or steps whose graphs it keeps
    after: int
    bytes: int | None
    file: str
    function: str
    line: int


class Mark:
    """Kept by a node of a graph, and by nothing else: so it lives while that node does."""

    def __init__(self, step: int):
        self.step = step


@dataclass
class Seen:
    """What a variable was when it was looked at last, and how it came to that."""

    first_size: int
    size: int
    first_entry: Callable[[], object]  # returns what a container begins with, while that lives
    rises: int = 0


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.seen: dict[str, Seen] = {}
        self.marks: dict[str, list[weakref.ref[Mark]]] = {}  # of the graphs that a variable had
        self.found: dict[str, Grown] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None, step: int) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs, at a step."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        if frame is None or loop is None:
            return
        around = {name: frame.f_globals[name] for name in loop.co_names if name in frame.f_globals}
        for name, value in _kept_in(around | stack.variables(frame)):
            sized = _is_sized(value)
            size = len(value) if sized else self._steps_kept(name, value, step)
            line = _line_of(name, sized, loop) if size else 0
            if not size or name.startswith("_") or not (sized or line or "." in name):
                continue  # `loss` has a part in the graph that `total += loss` keeps
            first = _first(value)
            seen = self.seen.get(name)
            # A list that is made anew, as for each episode, begins with another entry
            if seen is None or size < seen.size or (sized and seen.first_entry() is not first):
                self.seen[name] = Seen(size, size, _reference(first))
                self.found.pop(name, None)
                continue
            seen.rises += size > seen.size
            seen.size = size
            if seen.rises >= RISES and size >= max(LEAST_GROWN, 2 * seen.first_size):
                self.found[name] = {
                    "name": name,
                    "graph": _graph_of(_last(value) if sized else value) is not None,
                    "before": seen.first_size,
                    "after": size,
                    "bytes": _bytes_of(value),
                    "file": loop.co_filename,
                    "function": "<module>" if "." in name else loop.co_name,
                    "line": line or loop.co_firstlineno,
                }

    def _steps_kept(self, name: str, value: object, step: int) -> int:
        """Return over how many steps a tensor's graph reaches back, as far as the looks tell."""
        node = _graph_of(value)
        if node is None:
            return 0
        mark = cast("dict[str, Mark]", node.metadata).setdefault("labkit", Mark(step))
        alive = [each for each in self.marks.get(name, []) if each() not in (None, mark)]
        self.marks[name] = [*alive, weakref.ref(mark)]
        oldest = self.marks[name][0]() or mark
        return step - oldest.step + 1


def _kept_in(variables: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the variables of a loop, with the lists of a dict, and graphs in other objects."""
    for name, value in variables.items():
        yield name, value
        parts = value if type(value) is dict and len(value) <= MOST_PARTS else {}
        for key, part in list(parts.items()):
            if type(key) is str and _is_sized(part):
                yield f'{name}["{key}"]', part
        attributes = {} if issubclass(type(value), ModuleType) or name == "self" else held(value)
        for key, part in list(attributes.items()):
            if _graph_of(_last(part) if _is_sized(part) else part) is not None:
                yield f"{name}.{key}", part


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


def _line_of(name: str, sized: bool, code: CodeType) -> int:
    """Return the line that makes a variable larger, as far as its text tells; 0 without one.

    It is in the loop's function; of an attribute, anywhere in its file.
    """
    _, dot, attribute = name.rpartition(".")
    named = rf"(?:\.{re.escape(attribute)})" if dot else rf"(?<![\w.]){re.escape(name)}"
    named = re.sub(
        r'\\\["(.*)"\\\]', r"\\b.*\1.*", named
    )  # logs["loss"], logs.setdefault("loss", [])
    more = r"(?:\[[^\]]*\])?(?:\.(?:append|extend|add|update|insert)\(|\s*\+?=)"
    again = rf"(?:\s*\+=|\b[^=(]*=.*{named}\b)"  # total += loss; out, h = rnn(x, h)
    grows = re.compile(named + (more if sized else again))
    lines = linecache.getlines(code.co_filename)
    own = {number for *_, number in code.co_lines() if number and number > code.co_firstlineno}
    numbers = range(1, len(lines) + 1) if dot else sorted(own)
    found = [each for each in numbers if each <= len(lines) and grows.search(lines[each - 1])]
    return found[-1] if found else 0
