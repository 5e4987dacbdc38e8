"""What a profiled step is made of, by the profiler's events: its operators, and its gaps."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from torch._C._autograd import DeviceType, _KinetoEvent

TINY_NS = 10_000  # an operator this short is mostly its own dispatch
HEAVY = re.compile(r"mm$|conv|linear|attention|matmul|einsum|gemm", re.I)
ELEMENTWISE = re.compile(
    r"^aten::_?(foreach_)?(add|sub|mul|div|addc(mul|div)|lerp|sqrt|rsqrt|pow|neg|abs|exp|log|sin|cos|tanh"
    r"|sigmoid|relu|gelu|silu|elu|hardtanh|threshold|clamp|clamp_min|where|maximum|minimum|fill|zero"
    r"|copy|square|reciprocal|log1p|erf)(_backward)?_?$"
)
# Allocation and conversion: between two passes of a chain, and no end of it
MEMORY = re.compile(r"^aten::_?(empty|to$|to_copy|clone|contiguous|zeros|ones|resize|new_)")
# What is an operator: "aten::add", a compiled graph. All else marks a stretch of Python, autograd
# or compiling, whose own time is not device work
OPERATOR = re.compile(r"^(?!autograd::engine)\w+::\w|CompiledFxGraph")


class Operator(NamedTuple):
    """An operator with the time that is its own, without the operators it called; ns."""

    name: str
    own: int
    size: int  # elements of its largest input


def summarise(events: list[_KinetoEvent], window: str) -> dict[str, float]:
    """Summarise profiler events inside the shortest of the marks named `window`; µs a step."""
    on_host = [event for event in events if event.device_type() == DeviceType.CPU]
    windows = [(event.start_ns(), event.end_ns()) for event in on_host if event.name() == window]
    if not windows:
        raise ValueError("the profiler kept none of the steps")
    start, end = min(windows, key=lambda span: span[1] - span[0])
    inside = [each for each in on_host if start <= each.start_ns() and each.end_ns() <= end]
    operators, covered = _own_times(inside)
    tiny = [each.own for each in operators if each.own < TINY_NS]
    return {
        "steps": len(windows),
        "tiny_ops": len(tiny),
        "window_us": _us(end - start),
        "gap_us": _us(end - start - covered),  # no operator ran
        "tiny_us": _us(sum(tiny)),
        "heavy_us": _us(_own_ns(operators, HEAVY)),
        "elementwise_us": _us(_own_ns(operators, ELEMENTWISE)),
        "fusible_us": _us(_fusible_ns(operators)),  # what chains of these save as one pass
    }


def _own_ns(operators: list[Operator], names: re.Pattern[str]) -> int:
    return sum(each.own for each in operators if names.search(each.name))


def _us(nanoseconds: int) -> float:
    return round(nanoseconds / 1e3, 1)


def _own_times(events: Iterable[_KinetoEvent]) -> tuple[list[Operator], int]:
    """Return the operators with their own times, and the ns that at least one was running."""
    found: list[Operator] = []
    covered = 0
    reach = 0
    around: list[tuple[int, int]] = []  # (end, index in `found`) of those that are going on
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.end_ns())):
        if not OPERATOR.search(event.name()):
            continue
        start = event.start_ns()
        end = event.end_ns()
        covered += max(0, end - max(start, reach))
        reach = max(reach, end)
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            caller = found[around[-1][1]]
            found[around[-1][1]] = caller._replace(own=caller.own - (end - start))
        # the shape of a list of tensors is nested
        sizes = [math.prod(n for n in shape if isinstance(n, int)) for shape in event.shapes()]
        around.append((end, len(found)))
        found.append(Operator(event.name(), end - start, max(sizes, default=0)))
    return found, covered


def _fusible_ns(operators: list[Operator]) -> int:
    """Return what fusing would save: of passes over the same data in a row all but the longest."""
    passes = [each for each in operators if each.own >= TINY_NS and not MEMORY.search(each.name)]
    saved = 0
    for (is_elementwise, _size), chain in itertools.groupby(passes, _kind_of_pass):
        if is_elementwise:
            times = [each.own for each in chain]
            saved += sum(times) - max(times)
    return saved


def _kind_of_pass(operator: Operator) -> tuple[bool, int]:
    return bool(ELEMENTWISE.search(operator.name)), operator.size
