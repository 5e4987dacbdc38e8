"""Is a line within a loop inside the step, such as one over samples, time steps or weights?

Read from the source, by its indentation, and from what the loop goes over: no user's code is run.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from types import FrameType
from typing import NamedTuple

from labkit.instruments import stack
from labkit.instruments.kinds import looked_up
from labkit.stamps.keys import without_literals

FOR = re.compile(r"(async )?for\b")
OUTSIDE = re.compile(r"((async )?def|class)\b")  # no loop around this is of the function
HEADER = re.compile(r"\bfor (?P<items>.+?) in (?P<over>.+):")
RANGE = re.compile(r"range\((\d+)\)")
NAME = re.compile(r"[A-Za-z_][\w.]*(?![\w.(\[])")  # of a variable, and of no call
CALLS_ITEM = re.compile(r"[])]\(")  # self.layers[i](x)
FEWEST_TURNS = 8  # a loop over three crops or four micro-batches is none over single operators
SIZED = (list, tuple, dict, set, range)


class InnerLoop(NamedTuple):
    """A loop within a step."""

    file: str
    line: int
    function: str
    turns: int = 0  # in each step, of older records: no longer read
    text: str = ""  # as it is written


@functools.lru_cache(4096)
def loops_around(file: str, line: int) -> tuple[int, ...]:
    """Return the lines of the `for` loops around a line of a function, the innermost first."""
    found = []
    indent = stack.LONGEST_LINE
    for number in range(line, 0, -1):
        whole = linecache.getline(file, number)
        text = whole.strip()
        margin = len(whole) - len(whole.lstrip())
        if not text or text.startswith("#") or margin >= indent:
            continue
        indent = margin
        if OUTSIDE.match(text):
            break
        if FOR.match(text):
            found.append(number)
    return tuple(found)


def inner_loop(frame: FrameType, batch_loop: int | None) -> InnerLoop | None:
    """Return the innermost loop within a step that a user's frame is in, of those that count.

    `batch_loop` is the line in this function where batches are asked for; None in other functions.
    """
    code = frame.f_code
    if code.co_flags & inspect.CO_GENERATOR and code.co_name != "<genexpr>":
        return None  # it hands on batches
    batches = () if batch_loop is None else loops_around(code.co_filename, batch_loop)
    for line in loops_around(code.co_filename, frame.f_lineno or 0):
        text = linecache.getline(code.co_filename, line).strip()
        if line not in batches and _counts(text, frame):
            text = without_literals(text)[: stack.LONGEST_LINE]
            return InnerLoop(code.co_filename, line, stack.name_of(code), text=text)
    return None


def _counts(text: str, frame: FrameType) -> bool:
    """Return whether a loop is over tensors or numbers, and of more than a few turns.

    One over a model's layers is how models are written, and one over a loader is another one's.
    """
    loop = HEADER.match(text)
    if loop is None or CALLS_ITEM.search(stack.text_of(frame)):
        return False
    items = [looked_up(name, frame) for name in NAME.findall(loop["items"])]
    over = [looked_up(name, frame) for name in NAME.findall(loop["over"])]
    over += map(int, RANGE.findall(loop["over"]))
    sizes = [_size(each) for each in over if each is not None]
    if None in sizes or any(stack.is_a(each, "torch.nn", "Module") for each in items):
        return False
    return max(filter(None, sizes), default=FEWEST_TURNS) >= FEWEST_TURNS


def _size(value: object) -> int | None:
    """Return how often a loop over a value turns, or up to it; None where that is not known."""
    if stack.is_a(value, "torch", "Tensor") or stack.is_a(value, "numpy", "ndarray"):
        return next(iter(value.shape), 0)  # pyright: ignore[reportAttributeAccessIssue]
    if type(value) in SIZED:
        return len(value)  # pyright: ignore[reportArgumentType]
    return value if type(value) is int else None
