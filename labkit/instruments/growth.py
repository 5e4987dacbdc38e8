"""What keeps the graphs of ever more steps in somebody else's loop: a list, or a sum, of losses.

Nothing here imports torch or runs the loop's own code: only lists, dicts and tensors are looked at.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any

from labkit.instruments import stack
from labkit.instruments.batch_contents import is_array

LEAST_GROWN = 32  # steps whose graphs are kept: fewer are no growth


class Growth:
    """Looks at the variables of a loop now and then, and remembers how large they were at first."""

    def __init__(self):
        self.least: dict[str, int] = {}  # by name: the fewest that it was seen with
        # Those that grow, as the `growth` event has them; `before` and `after`: of how many steps
        # they kept the graphs at first, and now
        self.found: dict[str, dict[str, Any]] = {}

    def look(self, frame: FrameType | None, loop: CodeType | None) -> None:
        """Look at the frame of the code `loop`, which called what `frame` runs."""
        while frame is not None and frame.f_code is not loop:
            frame = frame.f_back
        self.found = {}
        for name, value in stack.variables(frame).items() if frame else ():
            size = _graphs_in(value)
            least = self.least[name] = min(size, self.least.get(name, size))
            if frame is not None and size >= max(LEAST_GROWN, 2 * least):
                self.found[name] = {
                    "name": name,
                    "before": least,
                    "after": size,
                    "file": frame.f_code.co_filename,
                    "function": frame.f_code.co_name,
                    "line": frame.f_lineno,
                }


def _graphs_in(value: Any) -> int:
    """Return how many steps' graphs a list or a dict holds, or a tensor that is added to.

    `best = loss` keeps one graph and is not changed; `total += loss` gets a longer one each time.
    """
    entries: Any = value.values() if type(value) is dict else value
    if type(value) in (list, dict):
        return len(entries) if _has_graph(next(reversed(entries), None)) else 0
    return entries._version if _has_graph(value) else 0


def _has_graph(value: Any) -> bool:
    """Return whether it is a tensor with autograd's graph; attributes of others may be code."""
    return is_array(value) and getattr(value, "grad_fn", None) is not None
