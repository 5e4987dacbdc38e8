"""What grows from step to step in somebody else's loop: a list that is kept, a sum of losses.

Nothing here imports torch or runs the loop's own code: only built-in containers and tensors are
asked for their size.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, TypedDict

from labkit.instruments import stack
from labkit.instruments.batch_contents import is_array

LEAST_GROWN = 32  # entries, or steps whose graphs are kept: what is smaller is no growth


class Grown(TypedDict):
    """A variable that grows, as the `growth` event holds it."""

    name: str
    graph: bool  # whether it keeps autograd's graph of each step
    before: int  # entries, or steps whose graphs it keeps
    after: int
    bytes: int
    file: str
    function: str
    line: int  # of the loop


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        # {name: its id, its size at the first look since it is this one, and at the last}
        self.seen: dict[str, tuple[int, int, int]] = {}
        self.found: dict[str, Grown] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        for name, value in stack.variables(frame).items() if frame else ():
            size = _size_of(value)
            if frame is None or size is None:
                continue
            same, first, last = self.seen.get(name, (0, 0, 0))
            if same != id(value) or size < last:  # it is another, or was emptied
                first = size
            self.seen[name] = id(value), first, size
            self.found.pop(name, None)
            if size >= max(LEAST_GROWN, 2 * first):
                entry = _last_of(value)
                one = entry.nbytes if is_array(entry) else object.__sizeof__(entry)
                self.found[name] = {
                    "name": name,
                    "graph": _has_graph(entry),
                    "before": first,
                    "after": size,
                    "bytes": size * one,
                    "file": frame.f_code.co_filename,
                    "function": frame.f_code.co_name,
                    "line": frame.f_lineno,
                }


def _size_of(value: Any) -> int | None:
    """Return how large a container is, or how often a tensor with a graph was added to, else None.

    `best = loss` keeps one graph and is not changed; `total += loss` gets a longer one each time.
    """
    if type(value) in (list, dict):
        return len(value)
    return value._version if _has_graph(value) else None


def _last_of(value: Any) -> Any:
    """Return the last entry of a container; itself of a tensor."""
    if type(value) is dict:
        return next(reversed(value.values()))
    return value[-1] if type(value) is list else value


def _has_graph(value: Any) -> bool:
    """Return whether it is a tensor with autograd's graph; attributes of others may be code."""
    return is_array(value) and stack.is_a(value, "torch", "Tensor") and value.grad_fn is not None
