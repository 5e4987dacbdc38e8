"""Which expression of the source does a frame evaluate, and how is it written?"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import linecache
import sys
import threading
from types import CodeType, FrameType

from labkit.bench.stack import position_of, top_frame
from labkit.process.keys import without_literals

ONE_AT_A_TIME = sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)
CALL_LENGTH = 80  # characters of it that are kept
# What Python hands to the objects' own code: of tensors, comparisons and indices are torch's
OPERATIONS = (ast.Call, ast.BinOp, ast.Compare, ast.Subscript, ast.UnaryOp)


def call_text(node: ast.expr | None) -> str:
    """Return an expression as it stands in the source, a call without its arguments.

    The texts in it are left out: one of them may be a password.
    """
    if node is None:
        return ""
    text = f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)
    return without_literals(text)[:CALL_LENGTH]


def expression(frame: FrameType) -> ast.expr | None:
    """Return the call or operation that a frame evaluates; None where that cannot be told."""
    return _parsed(frame.f_code, frame.f_lasti, frame.f_lineno)


@functools.lru_cache(4096)
def _parsed(code: CodeType, instruction: int, line_now: int | None) -> ast.expr | None:
    text = source_of(code, instruction, line_now)
    for written in (f"({text})", text):  # an expression, or `x += y`
        with contextlib.suppress(SyntaxError, ValueError):
            parsed = syntax_of(written)
            statement = parsed.body[0] if parsed.body else None
            if isinstance(statement, ast.With):
                return statement.items[0].context_expr  # it enters or leaves that
            if isinstance(statement, ast.For):
                parsed = statement.iter  # it asks for the next item; the body is not its own
            for node in ast.walk(parsed):
                if isinstance(node, OPERATIONS):
                    return node
                if isinstance(node, ast.AugAssign):
                    return ast.BinOp(node.target, node.op, node.value)
    return None


def syntax_of(text: str) -> ast.Module:
    """Parse source as `ast.parse` does; raise SyntaxError also while the program itself parses.

    Before Python 3.11.8 and 3.12.2 all parsing counts its depth in one place: to parse within the
    program's own parsing, as from a finalizer that garbage collection runs there, makes that one
    fail with a SystemError (gh-106905). So nothing is collected within ours either.
    """
    if not ONE_AT_A_TIME:
        return ast.parse(text)
    main = threading.main_thread().ident or 0
    # Not the top of this very thread: a frame that knows itself keeps the user's variables
    beside = None if main == threading.get_ident() else top_frame(main)
    if _is_parsing(sys._getframe(1)) or _is_parsing(beside):
        raise SyntaxError("the program is parsing")
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collects:
            gc.enable()


def _is_parsing(frame: FrameType | None) -> bool:
    """Return whether a stack is within `ast.parse`."""
    while frame is not None and frame.f_code is not ast.parse.__code__:
        frame = frame.f_back
    return frame is not None


def source_of(code: CodeType, instruction: int, line_now: int | None = None) -> str:
    """Return the text that an instruction was compiled from; "" at a loop's jump back."""
    if sys.version_info < (3, 11):  # which knows lines only
        line = last = line_now
        column = end = None
    else:
        line, last, column, end = position_of(code, instruction)
    if line is None or last is None:
        return ""
    lines = [each.encode() for each in linecache.getlines(code.co_filename)[line - 1 : last]]
    if lines:  # columns are of bytes, not of characters
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="ignore").strip().rstrip(":")


def name_of(node: ast.AST | None) -> str:
    """Return the name that an expression ends in, as "item" of `loss.item`; "" of all others."""
    return getattr(node, "attr", getattr(node, "id", ""))
