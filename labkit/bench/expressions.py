"""What does a frame evaluate, as it is written in the source?"""

from __future__ import annotations

import dis
import functools
import linecache
import re
from types import CodeType, FrameType

from labkit.bench.stack import position_of
from labkit.process.keys import without_literals

CALL_LENGTH = 80  # characters of it that are kept
INNERMOST = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")  # brackets without any within
OPERATOR = re.compile(r"[\s+*/%<>=@&|^,-]")  # outside of brackets: this is no single call


def called(text: str) -> str:
    """Return what an expression calls: "loss.mean" of `loss.mean(0)`; "" of what is no call."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] in ")]}") - (text[at] in "([{")
        if depth == 0:
            break
    else:
        return ""
    head = outside = text[:at] if text.endswith(")") else ""
    while outside != (fewer := INNERMOST.sub("", outside)):
        outside = fewer
    return "" if OPERATOR.search(outside) else head


def call_text(text: str) -> str:
    """Return an expression as it stands in the source, a call without its arguments."""
    head = called(text)
    return f"{head}()"[:CALL_LENGTH] if head else text[:CALL_LENGTH]


def expression(frame: FrameType) -> str:
    """Return the call or operation that a frame evaluates; "" where that cannot be told.

    The texts in it are left out: one of them may be a password.
    """
    return _written(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(4096)
def _written(code: CodeType, instruction: int, line_now: int | None) -> str:
    """Return the text that an instruction was compiled from, on one line; "" of a name alone.

    And "" where a loop asks for its next item: its body is not called there.
    """
    line, last, column, end = position_of(code, instruction, line_now)
    if line is None or last is None or dis.opname[code.co_code[instruction]] == "FOR_ITER":
        return ""
    lines = [each.encode() for each in linecache.getlines(code.co_filename)[line - 1 : last]]
    if lines:  # columns are of bytes, not of characters
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][column:]
    text = " ".join(b"".join(lines).decode(errors="ignore").split())
    return "" if text.replace(".", "").isidentifier() else without_literals(text)
