"""What the profiled compute was made of: operators on a CPU, kernels on a GPU, and the gaps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

TINY_US = 10.0  # an operator this short is mostly its own dispatch
TOP = 8
LONGEST_CHAIN = 16  # elementwise operators taken as fusible into one pass
HEAVY = re.compile(r"mm$|conv|linear|attention|matmul|einsum|gemm", re.I)
ELEMENTWISE = re.compile(
    r"^aten::_?(foreach_)?(add|sub|mul|div|addc(mul|div)|lerp|sqrt|rsqrt|pow|neg|abs|exp|log|sin|cos|tanh"
    r"|sigmoid|relu|gelu|silu|elu|hardtanh|threshold|clamp|clamp_min|where|maximum|minimum|fill|zero"
    r"|copy|square|reciprocal|log1p|erf)(_backward)?_?$"
)
# Allocation and conversion: between two passes of a chain, and no end of it
MEMORY = re.compile(r"^aten::_?(empty|to$|to_copy|clone|contiguous|zeros|ones|resize|new_)")
# What is an operator: "aten::add", a compiled graph. All else marks a stretch of Python, autograd
# or compiling, whose own time is no work of the device
OPERATOR = re.compile(r"^(?!autograd::engine)\w+::\w|CompiledFxGraph")


class Op(NamedTuple):
    """An operator with the time that is its own, without the operators it called; ns."""

    name: str
    start: int
    own: int
    size: int  # elements of its largest input


def summarise(events: list, window: str) -> dict[str, Any]:
    """Summarise profiler events inside the marks named `window`; times in µs a step.

    Of several steps the shortest is taken: the one that other programs disturbed least. `gap_us` is
    the time in which no operator ran: Python, autograd's bookkeeping, the profiler itself.
    `tiny_us` is the time in operators shorter than `TINY_US`. `fusible_us` is what chains of large
    elementwise operators on same-sized data would save as one pass. ValueError without marks.
    """
    cpu = torch.autograd.DeviceType.CPU
    windows = [
        (e.start_ns(), e.end_ns()) for e in events if e.name() == window and e.device_type() == cpu
    ]
    if not windows:
        raise ValueError("the profiler kept none of the steps")
    start, end = min(windows, key=lambda span: span[1] - span[0])
    inside = [e for e in events if start <= e.start_ns() and e.end_ns() <= end]
    inside = [e for e in inside if e.device_type() == cpu and e.name() != window]
    ops, covered = own_times(inside)
    by_name, calls = Counter(), Counter()
    for op in ops:
        by_name[op.name] += op.own
        calls[op.name] += 1

    def us(some: Iterable[Op]) -> float:
        return round(sum(op.own for op in some) / 1e3, 1)

    tiny = [op for op in ops if op.own < TINY_US * 1e3]
    return {
        "steps": len(windows),
        "window_us": round((end - start) / 1e3, 1),
        "ops": len(ops),
        "gap_us": round((end - start - covered) / 1e3, 1),
        "tiny_us": us(tiny),
        "tiny_ops": len(tiny),
        "heavy_us": us(op for op in ops if HEAVY.search(op.name)),
        "elementwise_us": us(op for op in ops if ELEMENTWISE.search(op.name)),
        "fusible_us": round(fusible(ops) / 1e3, 1),
        "top": [[n, round(ns / 1e3, 1), calls[n]] for n, ns in by_name.most_common(TOP)],
    }


def own_times(events: list) -> tuple[list[Op], int]:
    """Return the operators with their own times, and the ns that at least one was running."""
    ops: list[Op] = []
    covered = reach = 0
    stack: list[list] = []  # [end, own time, index in ops]
    for event in sorted(events, key=lambda e: (e.start_ns(), -e.end_ns())):
        if not OPERATOR.search(event.name()):
            continue
        start, end = event.start_ns(), event.end_ns()
        covered += max(0, end - max(start, reach))
        reach = max(reach, end)
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            parent = stack[-1][1]
            ops[parent] = ops[parent]._replace(own=ops[parent].own - (end - start))
        ops.append(Op(event.name(), start, end - start, largest(event.shapes())))
        stack.append([end, len(ops) - 1])
    return ops, covered


def largest(shapes: list) -> int:
    """Return the number of elements of the largest of `shapes`."""
    most = 0
    for shape in shapes:
        size = 1
        for n in shape:
            size *= n if isinstance(n, int) else 1
        most = max(most, size if shape else 0)
    return most


def fusible(ops: list[Op]) -> int:
    """Return the ns that fusing would save: of each chain all but its longest pass."""
    saved, chain, total, size = 0, [], 0, 0
    for op in [*ops, Op("end", 0, 10**9, 0)]:
        if op.own < TINY_US * 1e3:
            continue
        if MEMORY.search(op.name):
            total += op.own if chain else 0  # room for a result that a fused pass never makes
            continue
        if not ELEMENTWISE.search(op.name):
            saved, chain, total = saved + total - max(chain, default=total), [], 0
            continue
        if len(chain) >= LONGEST_CHAIN or (chain and op.size != size):
            saved, chain, total = saved + total - max(chain), [], 0
        chain.append(op.own)
        total, size = total + op.own, op.size
    return saved
