"""What grows from step to step in somebody else's loop: a list that is kept, a graph of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from labkit.instruments import stack
from labkit.instruments.batch_contents import is_array

if TYPE_CHECKING:
    from torch.autograd.graph import Node

SIZED = (list, dict)
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


class Seen(NamedTuple):
    """What a variable was when it was looked at last, and how it came to that."""

    container: int  # its id: a list that is made anew, as for each episode, has another
    first_size: int
    size: int
    rises: int


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
        for name, value in _kept_in(stack.variables(frame)):
            node = _graph_of(value)
            if type(value) in SIZED:
                seen = self._compare(name, len(cast(list, value)), id(value))
            elif node is not None and _line_of(name, value, loop):
                # else it is `loss`, which is in the graph that `total` keeps
                seen = self._compare(name, self._steps_kept(name, node, step), 0)
            else:
                continue
            if seen.rises >= RISES and seen.size >= max(LEAST_GROWN, 2 * seen.first_size):
                self.found[name] = _grown(name, value, seen, loop)

    def _compare(self, name: str, size: int, container: int) -> Seen:
        """Compare the size of a variable with what it was before."""
        before = self.seen.get(name)
        if before is None or size < before.size or container != before.container:
            self.found.pop(name, None)
            seen = Seen(container, size, size, 0)
        else:
            seen = before._replace(size=size, rises=before.rises + (size > before.size))
        self.seen[name] = seen
        return seen

    def _steps_kept(self, name: str, node: Node, step: int) -> int:
        """Return over how many steps a tensor's graph reaches back, as far as the looks tell."""
        mark = cast("dict[str, Mark]", node.metadata).setdefault("labkit", Mark(step))
        alive = [each for each in self.marks.get(name, []) if each() not in (None, mark)]
        self.marks[name] = [*alive, weakref.ref(mark)]
        oldest = self.marks[name][0]() or mark
        return step - oldest.step + 1


def _grown(name: str, value: object, seen: Seen, loop: CodeType) -> Grown:
    last = _last(value)
    parts = last if type(last) in (list, tuple) else [last]
    return {
        "name": name,
        "graph": _graph_of(last) is not None,
        "before": seen.first_size,
        "after": seen.size,
        "bytes": seen.size * sum(map(_bytes, parts)) if last is not value else None,
        "file": loop.co_filename,
        "function": loop.co_name,
        "line": _line_of(name, value, loop) or loop.co_firstlineno,
    }


def _kept_in(variables: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the variables of a loop, with the lists of a dict."""
    for name, value in variables.items():
        if name.startswith("_"):
            continue
        yield name, value
        if type(value) is dict and len(value) <= MOST_PARTS:
            for key, part in list(value.items()):
                if type(key) is str and type(part) in SIZED:
                    yield f'{name}["{key}"]', part


def _last(value: Any) -> Any:
    """Return the last entry of a container, None of an empty one; else what it is given."""
    if type(value) not in SIZED:
        return value
    return next(reversed(value.values() if type(value) is dict else value), None)


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
    how = rf"\+=|=.*\b{word}\b"
    if type(value) in SIZED:
        how = r"\.(?:append|extend|add|update|insert)\(|\]\s*=[^=]|\+="
    grows = re.compile(rf"\b{word}\b.*(?:{how})")
    numbers = {line for *_, line in code.co_lines() if line and line != code.co_firstlineno}
    lines = ((n, linecache.getline(code.co_filename, n)) for n in numbers)
    return max((n for n, text in lines if grows.search(text)), default=0)
