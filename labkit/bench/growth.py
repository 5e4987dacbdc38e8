"""What a loop keeps from step to step: variables that grow, losses that keep their graph."""

from __future__ import annotations

import linecache
import re
import sys
from collections import deque
from types import CodeType, FrameType
from typing import Any

SIZED = (list, dict, set, deque)
LEAST = 32  # entries, or additions in a graph: what is smaller is no growth
DEEP = 64  # additions behind a tensor that are followed
RISES = 3  # looks in a row at which it was larger: what is emptied now and then is no growth


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.seen: dict[str, tuple[int, int, int]] = {}  # {name: (first size, last, rises)}
        self.found: dict[str, dict[str, Any]] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        if frame is None or loop is None:
            return
        names = dict(frame.f_locals)
        owner = names.get("self")
        if owner is not None and hasattr(owner, "__dict__"):
            names |= {f"self.{name}": value for name, value in vars(owner).items()}
        for name, value in names.items():
            kind, size = _size(value)
            if not size or name.startswith("_"):
                continue
            first, last, rises = self.seen.get(name, (size, size, 0))
            if size < last:
                first, rises = size, 0
            elif size > last or size == DEEP:
                rises += 1
            self.seen[name] = first, size, rises
            if rises >= RISES and size >= max(LEAST, 2 * first):
                self.found[name] = {
                    "name": name, "graph": kind == "graph", "before": first, "after": size,
                    "bytes": _bytes_of(value),
                    "file": loop.co_filename, "function": loop.co_name,
                    "line": _line_of(name, loop),
                }  # fmt: skip


def _size(value: Any) -> tuple[str, int]:
    """Return ("graph" or "list", size): entries of a container, additions behind a tensor."""
    if type(value) in SIZED:
        last = value[-1] if type(value) in (list, deque) and value else None
        return "list" if _graph_of(last) is None else "graph", len(value)
    node, depth = _graph_of(value), 0
    while node is not None and depth < DEEP and type(node).__name__.startswith("AddBackward"):
        depth += 1
        before = [each for each, _ in node.next_functions if each is not None]
        node = next((n for n in before if type(n).__name__.startswith("AddBackward")), None)
    return "graph", depth


def _bytes_of(value: Any) -> int | None:
    """Return about how many bytes a container's entries hold, by its last one; None if unknown."""
    if type(value) not in SIZED or type(value) is set or not value:
        return None
    last = next(reversed(value.values())) if type(value) is dict else value[-1]
    parts = last if type(last) in (list, tuple) else [last]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    known = tuple(filter(None, (getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None))))
    return len(value) * sum(
        int(part.nbytes) if isinstance(part, known) else sys.getsizeof(part) for part in parts
    )


def _graph_of(value: Any) -> Any:
    """Return a tensor's `grad_fn`; None of everything else, whose attributes may be code."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return value.grad_fn if tensor is not None and issubclass(type(value), tensor) else None


def _line_of(name: str, code: CodeType) -> int:
    """Return the line of the loop's function that makes `name` larger, as far as its text tells."""
    grows = re.compile(
        rf"(?<![\w.]){re.escape(name)}(?:\[[^\]]*\])?(?:\.(?:append|extend|add|update|insert)\(|\s*\+?=)"
    )
    lines = linecache.getlines(code.co_filename)
    last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
    found = [n for n in range(code.co_firstlineno, last + 1)
             if n <= len(lines) and grows.search(lines[n - 1])]  # fmt: skip
    return found[-1] if found else code.co_firstlineno
