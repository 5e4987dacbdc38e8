"""What does an instruction do? CPython names them in other ways from version to version."""

from __future__ import annotations

import dis
import functools
import re
from typing import Literal

Doing = Literal[
    "call",
    "precall",
    "start",
    "jump back",
    "condition",
    "not",
    "contains",
    "index",
    "subtract in place",
]

# By its name; BINARY_OP is followed by its operator
PATTERNS: dict[Doing, str] = {
    # Calls. Since 3.13 with keyword arguments CALL_KW; with `*` or `**` always CALL_FUNCTION_EX
    "call": r"CALL(_KW|_FUNCTION_EX)?",
    # In 3.11 alone a call is prepared first, and that is where signals are handled
    "precall": r"PRECALL",
    # The start of a function
    "start": r"RESUME",
    # The end of a loop's body
    "jump back": r"JUMP_BACKWARD",
    # Jumps if a value is true, or false: in 3.11 also POP_JUMP_FORWARD_IF_TRUE and the like
    "condition": r"(POP_)?JUMP_\w*IF_(TRUE|FALSE)(_OR_POP)?",
    "not": r"UNARY_NOT",
    "contains": r"CONTAINS_OP",
    # `x[i]`, read, written or deleted. Slices have their own since 3.12; since 3.14 `x[i]` is read
    # by BINARY_OP
    "index": r"(BINARY|STORE|DELETE)_SUBSCR|(BINARY|STORE)_SLICE|BINARY_OP \[\]",
    # `w -= x`: in 3.10 a name of its own, since 3.11 BINARY_OP
    "subtract in place": r"INPLACE_SUBTRACT|BINARY_OP -=",
}
ENDS = re.compile(r"(JUMP_(FORWARD|BACKWARD)|RETURN_|RERAISE|RAISE_)")


def does(step: dis.Instruction) -> Doing | None:
    """Return what an instruction does, if it is one of those that are told apart here."""
    is_operator = step.opname == "BINARY_OP"
    return _does(f"{step.opname} {step.argrepr}" if is_operator else step.opname)


@functools.cache
def _does(name: str) -> Doing | None:
    for doing, pattern in PATTERNS.items():
        if re.fullmatch(pattern, name):
            return doing
    return None


def may_go_on(step: dis.Instruction) -> bool:
    """Return whether the next instruction may follow on it."""
    return not ENDS.match(step.opname)
