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

from labkit.bench import stack
from labkit.bench.expressions import CALL_LENGTH, called, expression
from labkit.bench.named_objects import looked_up
from labkit.process.keys import without_literals

FOR = re.compile(r"(async )?for\b")
OUTSIDE = re.compile(r"((async )?def|class)\b")  # no loop around this is of the function
WITHIN = re.compile(r"[\[({][^#]*\bfor\b[^#]*\bin\b")  # a comprehension
HEADER = re.compile(  # for t in range(1, x.size(1) - 1): over the size 1 of x
    r"\bfor (?P<items>.+?) in (?:(?:range|len|enumerate|zip|reversed|tqdm|trange)\((?:\d+, )?)*"
    r"(?:(?P<digits>\d+)|(?P<path>[A-Za-z_][\w.]*?)(?:\.(?:size\(|shape\[)(?P<dimension>\d+)[)\]])?"
    r"(?![\w.(\[])|)"
)
FEWEST_TURNS = 8  # a loop over three crops or four micro-batches is none over single operators


class InnerLoop(NamedTuple):
    """A loop within a step."""

    file: str
    line: int
    function: str
    turns: int = 0  # in each step, where they are known
    text: str = ""  # as it is written


@functools.lru_cache(4096)
def loops_around(file: str, line: int) -> tuple[int, ...]:
    """Return the lines of the `for` loops around a line of a function, the innermost first."""
    lines = linecache.getlines(file)
    if not 0 < line <= len(lines):
        return ()
    at = lines[line - 1]
    is_loop = FOR.match(at.strip()) or WITHIN.search(at)
    found = [line] if is_loop else []
    indent = len(at) - len(at.lstrip())
    for number in range(line - 1, 0, -1):
        text = lines[number - 1].strip()
        margin = len(lines[number - 1]) - len(lines[number - 1].lstrip())
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
    around = loops_around(code.co_filename, frame.f_lineno or 0)
    if batch_loop is not None:
        batches = loops_around(code.co_filename, batch_loop)
        around = tuple(line for line in around if line not in batches)
    for line in around:
        turns = _turns(frame, line)
        if turns is not None and (not turns or turns >= FEWEST_TURNS):
            text = without_literals(linecache.getline(code.co_filename, line).strip())
            place = (code.co_filename, line, stack.name_of(code))
            return InnerLoop(*place, turns, text[:CALL_LENGTH])
    return None


def _turns(frame: FrameType, line: int) -> int | None:
    """Return how often a loop turns, 0 if unknown; None of one that is not over tensors or numbers.

    As one over a model's layers, which is how models are written, or over another loader.
    """
    loop = HEADER.search(linecache.getline(frame.f_code.co_filename, line))
    if loop is None or called(expression(frame)).endswith(("]", ")")):  # self.layers[i](x)
        return None
    items = [looked_up(each, frame) for each in re.findall(r"[A-Za-z_]\w*", loop["items"])]
    if any(stack.is_a(each, "torch.nn", "Module") for each in items):
        return None
    turns = _length(loop["digits"], loop["path"], int(loop["dimension"] or 0), frame)
    if turns is None:
        return None
    numbers = [each + 1 for each in items if type(each) is int]
    if turns or numbers:
        return turns or max(numbers)
    return 0 if any(stack.is_a(each, "torch", "Tensor") for each in items) else None


def _length(digits: str, path: str, dimension: int, frame: FrameType) -> int | None:
    """Return how many items are iterated, 0 if unknown; None of an object that is no sequence."""
    found = int(digits) if digits else looked_up(path or "", frame)
    if stack.is_a(found, "torch", "Tensor") or stack.is_a(found, "numpy", "ndarray"):
        shape = tuple(found.shape)  # pyright: ignore[reportAttributeAccessIssue]
        return shape[dimension] if dimension < len(shape) else 0
    if type(found) in (list, tuple, dict, set, range):
        return len(found)  # pyright: ignore[reportArgumentType]
    if type(found) is int:
        return found
    return 0 if found is None else None
