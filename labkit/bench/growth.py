"""What a loop keeps from step to step: variables that grow, losses that keep their graph."""

from __future__ import annotations

import linecache
import re
from collections import deque
from types import CodeType, FrameType
from typing import Any

SIZED = (list, dict, set, deque)
LEAST = 8  # entries, or additions in a graph: what is smaller is no growth
DEEP = 64  # additions behind a tensor that are followed


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.first: dict[str, int] = {}
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
            first = self.first.setdefault(name, size)
            if size >= max(LEAST, 2 * first):
                self.found[name] = {
                    "name": name, "graph": kind == "graph", "before": first, "after": size,
                    "file": loop.co_filename, "function": loop.co_name,
                    "line": _line_of(name, loop),
                }  # fmt: skip


def _size(value: Any) -> tuple[str, int]:
    """Return ("graph" or "list", size): entries of a container, additions behind a tensor."""
    if type(value) in SIZED:
        last = value[-1] if type(value) in (list, deque) and value else None
        return "graph" if getattr(last, "grad_fn", None) is not None else "list", len(value)
    node, depth = getattr(value, "grad_fn", None), 0
    while node is not None and depth < DEEP and type(node).__name__.startswith("AddBackward"):
        depth += 1
        before = [each for each, _ in node.next_functions if each is not None]
        node = next((n for n in before if type(n).__name__.startswith("AddBackward")), None)
    return "graph", depth


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
