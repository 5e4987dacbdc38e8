"""What grows from step to step in somebody else's loop: a list that is kept, a sum of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

import linecache
import re
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from weakref import ref

from labkit.instruments import stack
from labkit.instruments.batch_contents import is_array

if TYPE_CHECKING:
    from torch.autograd.graph import Node

LEAST_GROWN = 32  # entries, or steps whose graphs are kept: what is smaller is no growth
RISES = 3  # looks at which it was larger: what is emptied now and then is no growth


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


class Seen(NamedTuple):
    """What a variable was when it was looked at last, and how it came to that."""

    what: object  # the id of a container, a reference to a tensor
    first: int  # its size then; of a tensor how often it was changed in place
    last: int
    rises: int = 0


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.seen: dict[str, Seen] = {}
        self.found: dict[str, Grown] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        for name, value in stack.variables(frame).items() if frame else ():
            now = _sized(value)
            if now is None:
                continue
            before = self.seen.get(name, now)
            is_same = now.what is before.what or now.what == id(value) == before.what
            if is_same and now.last >= before.last:
                rises = before.rises + (now.last > before.last)
                now = now._replace(first=before.first, rises=rises)
            self.seen[name] = now
            self.found.pop(name, None)
            if frame and now.rises >= RISES and now.last >= max(LEAST_GROWN, 2 * now.first):
                self.found[name] = _grown(name, value, now, frame.f_code)


def _sized(value: Any) -> Seen | None:
    """Return a container, or a tensor that has a graph, as it is now; None of all else.

    `best = loss` keeps one graph and is not changed; `total += loss` gets a longer one each time.
    """
    if type(value) in (list, dict):
        return Seen(id(value), len(value), len(value))
    has_graph = _graph_of(value) is not None
    return Seen(ref(value), value._version, value._version) if has_graph else None


def _grown(name: str, value: Any, seen: Seen, code: CodeType) -> Grown:
    entry = value
    if type(value) in (list, dict):
        entry = next(reversed(value.values() if type(value) is dict else value))
    word = name.rpartition(".")[2]
    grows = re.compile(rf"\b{word}\b.*(\.(append|extend|add|update|insert)\(|\]\s*=[^=]|\+=)")
    lines = {line for *_, line in code.co_lines() if line}
    grown = [line for line in lines if grows.search(linecache.getline(code.co_filename, line))]
    return {
        "name": name,
        "graph": _graph_of(entry) is not None,
        "before": seen.first,
        "after": seen.last,
        "bytes": seen.last * (entry.nbytes if is_array(entry) else object.__sizeof__(entry)),
        "file": code.co_filename,
        "function": code.co_name,
        "line": max(grown, default=code.co_firstlineno),
    }


def _graph_of(value: Any) -> Node | None:
    """Return a tensor's `grad_fn`; None of everything else, whose attributes may be code."""
    return value.grad_fn if is_array(value) and stack.is_a(value, "torch", "Tensor") else None
