"""What grows from step to step in somebody else's loop: a list that is kept, a graph of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypedDict, cast
from weakref import WeakValueDictionary

from labkit.instruments import stack
from labkit.instruments.batch_contents import is_array

if TYPE_CHECKING:
    from torch.autograd.graph import Node

MOST_PARTS = 256  # of a dict: a cache of a million entries is not walked through
LEAST_GROWN = 32  # entries, or steps whose graphs are kept: what is smaller is no growth
RISES = 3  # looks at which it was larger: what is emptied now and then is no growth
GROWS = r"\.(?:append|extend|add|update|insert)\(|\]\s*=[^=]|\+="  # a container, behind its name


class Grown(TypedDict):
    """A variable that grows, as the `growth` event holds it."""

    name: str
    graph: bool  # whether it keeps autograd's graph of each step
    before: int  # entries, or steps whose graphs it keeps
    after: int
    bytes: int
    file: str
    function: str
    line: int


class Mark:
    """Kept by a node of a graph, and by nothing else: so it lives while that node does."""


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        # Of each variable: its id, its first size, its last one, and how often it was larger. A
        # list that is made anew, as for each episode, has another id
        self.seen: dict[str, tuple[int, int, int, int]] = {}
        # Of each that has a graph: the steps whose nodes are alive, as far as the looks tell
        self.marks: dict[str, WeakValueDictionary[int, Mark]] = {}
        self.found: dict[str, Grown] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None, step: int) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs, at a step."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        if frame is None:
            return
        for name, value in _kept_in(stack.variables(frame)):
            node = _graph_of(value)
            if type(value) in (list, dict):
                self._compare(name, value, id(value), len(value), frame.f_code)
            elif node is not None and _line_of(name, value, frame.f_code):
                # else it is `loss`, which is in the graph that `total` keeps
                marks = self.marks.setdefault(name, WeakValueDictionary())
                kept = cast("dict[str, Mark]", node.metadata)
                marks[step] = kept.setdefault("labkit", Mark())
                self._compare(name, value, 0, step - min(marks) + 1, frame.f_code)

    def _compare(self, name: str, value: Any, key: int, size: int, code: CodeType) -> None:
        """Compare the size of a variable with what it was before."""
        known, first, last, rises = self.seen.get(name, (key, size, size, 0))
        if size < last or key != known:
            first, last, rises = size, size, 0
            self.found.pop(name, None)
        rises += size > last
        self.seen[name] = key, first, size, rises
        if rises < RISES or size < max(LEAST_GROWN, 2 * first):
            return
        entry = value
        if type(value) in (list, dict):
            entry = next(reversed(value.values() if type(value) is dict else value))
        self.found[name] = {
            "name": name,
            "graph": _graph_of(entry) is not None,
            "before": first,
            "after": size,
            "bytes": size * sum(map(_bytes, entry if type(entry) in (list, tuple) else [entry])),
            "file": code.co_filename,
            "function": code.co_name,
            "line": _line_of(name, value, code) or code.co_firstlineno,
        }


def _kept_in(variables: dict[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a loop, with the lists of a dict."""
    for name, value in variables.items():
        if not name.startswith("_"):
            yield name, value
            if type(value) is dict and len(value) <= MOST_PARTS:
                parts = [(key, part) for key, part in value.items() if type(part) in (list, dict)]
                yield from ((f'{name}["{key}"]', part) for key, part in parts if type(key) is str)


def _bytes(part: Any) -> int:
    """Return the bytes of the host's memory: of an array's numbers, or of another object alone."""
    if not is_array(part):
        return object.__sizeof__(part)
    return 0 if stack.is_a(part, "torch", "Tensor") and not part.is_cpu else part.nbytes


def _graph_of(value: Any) -> Node | None:
    """Return a tensor's `grad_fn`; None of everything else, whose attributes may be code."""
    return value.grad_fn if is_array(value) and stack.is_a(value, "torch", "Tensor") else None


def _line_of(name: str, value: object, code: CodeType) -> int:
    """Return the last line of a function that makes a variable larger, by its text; 0 without one.

    That is `kept.append(loss)` or `kept[step] = loss`; `total += loss` or `out, h = rnn(x, h)`.
    """
    word = re.findall(r"\w+", name)[-1]
    how = GROWS if type(value) in (list, dict) else rf"\+=|=.*\b{word}\b"
    grows = re.compile(rf"\b{word}\b.*(?:{how})")
    numbers = {line for *_, line in code.co_lines() if line and line != code.co_firstlineno}
    lines = ((n, linecache.getline(code.co_filename, n)) for n in numbers)
    return max((n for n, text in lines if grows.search(text)), default=0)
