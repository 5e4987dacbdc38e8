"""Where a host waits for a GPU in an operation, not in a call: `if loss < best:`, `logits[mask]`.

The truth of a tensor on a GPU, and how many elements a mask selects, are known once all that is
queued is done. It runs no user's code.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import dis
import functools
from collections import defaultdict
from types import CodeType, FrameType
from typing import NamedTuple

from labkit.bench import kinds, stack

CALLS = frozenset(["CALL", "CALL_KW", "CALL_FUNCTION_EX"])
JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
INDEXES = ("SUBSCR", "BINARY_SLICE")  # since Python 3.14 an index is a BINARY_OP with "[]"
NEVER_ON = ("JUMP_FORWARD", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE")
UNSEEN = frozenset(["append", "isinstance", "len"])  # calls in which Python handles no signal
# Calls that take next to no time: what took it came before
CLOCKS = frozenset(
    ["monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"]
)
QUICK = UNSEEN | CLOCKS | {"print"}


class Wait(NamedTuple):
    """An operation that waits for a GPU."""

    frame: FrameType
    line: int
    text: str


def wait_for_gpu(top: FrameType, is_late: bool) -> Wait | None:
    """Return the operation that the stack from `top` on waits in for a GPU; None for none.

    A host that spins so long notes a signal late (`is_late`): Python runs the handler as it enters
    the next function, after most calls of C code, and at a loop's jump back. That is where `top` is
    then, and what it waited in came before.
    """
    steps = _steps_to(top) if stack.is_gpu_in_use() else ()
    if not steps:
        return None
    now = steps[-1].opname
    if not is_late:
        return _wait_in(top, steps, len(steps) - 1)
    if now == "RESUME":
        return _wait_before(top.f_back) if top.f_back else None
    is_call = now in CALLS or now == "PRECALL"  # where Python 3.11 does it
    is_quick = is_call and _is_quick(top, top.f_lasti)
    return _wait_before(top) if is_quick or now == "JUMP_BACKWARD" else None


def _wait_before(frame: FrameType) -> Wait | None:
    """Return the last wait on the ways to where a frame is, with no call between."""
    steps = _steps_to(frame)
    jumps = defaultdict(list)  # {offset: the numbers of the steps that jump there}
    for number, step in enumerate(steps):
        if step.opcode in JUMPS and step.argval > step.offset:
            jumps[step.argval].append(number)
    ways = {len(steps) - 1}
    while ways:
        number = max(ways)
        ways.remove(number)
        before = jumps[steps[number].offset]
        if number and not steps[number - 1].opname.startswith(NEVER_ON):
            before = [*before, number - 1]
        for each in before:
            wait = _wait_in(frame, steps, each)
            if wait is not None:
                return wait
            is_call = steps[each].opname in CALLS
            if not is_call or _is_call_of(UNSEEN, frame, steps[each].offset):
                ways.add(each)
    return None


def _wait_in(frame: FrameType, steps: tuple[dis.Instruction, ...], number: int) -> Wait | None:
    """Return the wait that one of a frame's steps is; None where it is none."""
    step = steps[number]
    is_condition = "_IF_" in step.opname and "NONE" not in step.opname
    if is_condition:
        step = steps[number - 1]  # it has the condition's place, and the jump the statement's
    node = _value(frame.f_code, step.offset)
    if node is None:
        return None
    waits = False
    if is_condition:
        waits = kinds.value_on_gpu(node, frame)
    elif step.opname == "UNARY_NOT":
        waits = isinstance(node, ast.UnaryOp) and kinds.value_on_gpu(node.operand, frame)
    elif step.opname == "CONTAINS_OP":
        waits = isinstance(node, ast.Compare) and kinds.value_on_gpu(node.comparators[0], frame)
    elif step.opname.endswith(INDEXES) or step.argrepr == "[]":
        waits = isinstance(node, ast.Subscript) and _needs_values(node.slice, frame)
    line = stack.position_of(frame.f_code, step.offset)[0]
    return Wait(frame, line, kinds.call_text(node)) if waits and line else None


def _is_quick(frame: FrameType, instruction: int) -> bool:
    """Return whether a call takes next to no time."""
    node = _value(frame.f_code, instruction)
    if node is not None and kinds.kind_of_node(node, frame) == "torch":
        return kinds.is_on_gpu(node, frame)  # it only queues work
    return _is_call_of(QUICK, frame, instruction)


def _is_call_of(names: frozenset[str], frame: FrameType, instruction: int) -> bool:
    """Return whether an instruction calls a function of Python's own that has one of the names."""
    node = _value(frame.f_code, instruction)
    if not isinstance(node, ast.Call) or _name_of(node.func) not in names:
        return False
    return kinds.kind_of_node(node, frame) in ("python", "logging")


def _name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _needs_values(index: ast.AST, frame: FrameType) -> bool:
    """Return whether an index has truth values, or the ends of a slice, that are on a GPU."""
    if isinstance(index, ast.Compare):
        return kinds.value_on_gpu(index, frame)
    if isinstance(index, ast.Slice):
        return any(kinds.value_on_gpu(end, frame) for end in ast.iter_child_nodes(index))
    if isinstance(index, ast.Call) and _name_of(index.func) == "bool":
        return kinds.value_on_gpu(index, frame)
    tensor = kinds.tensor_on_gpu(index, frame)
    if tensor is not None or isinstance(index, ast.Name):
        return str(getattr(tensor, "dtype", None)) == "torch.bool"
    return any(_needs_values(each, frame) for each in ast.iter_child_nodes(index))


@functools.lru_cache(256)
def _steps(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(dis.get_instructions(code))


def _steps_to(frame: FrameType) -> tuple[dis.Instruction, ...]:
    """Return the instructions up to the one that a frame is at."""
    steps = _steps(frame.f_code)  # behind a call's own place Python counts the room of its cache
    return steps[: bisect.bisect_right(steps, frame.f_lasti, key=lambda step: step.offset)]


@functools.lru_cache(4096)
def _value(code: CodeType, instruction: int) -> ast.expr | None:
    """Return the expression that an instruction was compiled from."""
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(f"({kinds.source_of(code, instruction)})", mode="eval").body
    return None
