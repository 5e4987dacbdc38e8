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
from labkit.bench.expressions import call_text, name_of, source_of, syntax_of
from labkit.bench.gpu_tensors import is_on_gpu, tensor_on_gpu
from labkit.bench.instructions import Doing, does, may_go_on

JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
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

    A host that waits notes a signal late (`is_late`): Python runs the handler as it enters the next
    function, after most calls of C code, and at a loop's jump back. That is where `top` is then,
    and what it waited in came before.
    """
    steps = _steps_to(top) if stack.is_gpu_in_use() else ()
    if not steps:
        return None
    if not is_late:
        return _wait_in(top, steps, len(steps) - 1)
    now = does(steps[-1])
    if now == "start":
        return _wait_before(top.f_back) if top.f_back else None
    is_quick = now in ("call", "precall") and _is_quick(top, top.f_lasti)
    return _wait_before(top) if is_quick or now == "jump back" else None


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
        if number and may_go_on(steps[number - 1]):
            before = [*before, number - 1]
        for each in before:
            wait = _wait_in(frame, steps, each)
            if wait is not None:
                return wait
            is_call = does(steps[each]) == "call"
            if not is_call or _is_call_of(UNSEEN, frame, steps[each].offset):
                ways.add(each)
    return None


def _wait_in(frame: FrameType, steps: tuple[dis.Instruction, ...], number: int) -> Wait | None:
    """Return the wait that one of a frame's steps is; None where it is none."""
    step = steps[number]
    doing = does(step)
    if doing == "condition":
        step = steps[number - 1]  # it has the condition's place, and the jump the statement's
    node = _value(frame.f_code, step.offset)
    if node is None or not _waits(doing, node, frame):
        return None
    line = stack.position_of(frame.f_code, step.offset)[0]
    return Wait(frame, line, call_text(node)) if line else None


def _waits(doing: Doing | None, node: ast.expr, frame: FrameType) -> bool:
    """Return whether an instruction that was compiled from `node` waits for a GPU."""
    match doing, node:
        case "condition", _:
            return kinds.value_on_gpu(node, frame)
        case "not", ast.UnaryOp(operand=operand):
            return kinds.value_on_gpu(operand, frame)
        case "contains", ast.Compare(comparators=[container, *_]):
            return kinds.value_on_gpu(container, frame)
        case "index", ast.Subscript(slice=index):
            return _needs_values(index, frame)
    return False


def _is_quick(frame: FrameType, instruction: int) -> bool:
    """Return whether a call takes next to no time."""
    node = _value(frame.f_code, instruction)
    if node is not None and kinds.kind_of_node(node, frame) == "torch":
        return is_on_gpu(node, frame)  # it only queues work
    return _is_call_of(QUICK, frame, instruction)


def _is_call_of(names: frozenset[str], frame: FrameType, instruction: int) -> bool:
    """Return whether an instruction calls a function of Python's own that has one of the names."""
    node = _value(frame.f_code, instruction)
    if not isinstance(node, ast.Call) or name_of(node.func) not in names:
        return False
    return kinds.kind_of_node(node, frame) in ("python", "logging")


def _needs_values(index: ast.AST, frame: FrameType) -> bool:
    """Return whether an index has truth values, or the ends of a slice, that are on a GPU."""
    if isinstance(index, ast.Compare):
        return kinds.value_on_gpu(index, frame)
    if isinstance(index, ast.Slice):
        return any(kinds.value_on_gpu(end, frame) for end in ast.iter_child_nodes(index))
    if isinstance(index, ast.Call) and name_of(index.func) == "bool":
        return kinds.value_on_gpu(index, frame)
    tensor = tensor_on_gpu(index, frame)
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
        statement = syntax_of(f"({source_of(code, instruction)})").body[0]
        return statement.value if isinstance(statement, ast.Expr) else None
    return None
