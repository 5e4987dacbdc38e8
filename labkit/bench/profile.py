"""The x-ray: a few more steps under torch.profiler once the measured ones are over.

The profiler makes a step up to two thirds longer, and while it starts and stops the loader fills
its queues. So the steps it watches come after the last measured one and enter no statistics. Then
the same step is timed with twice the batch and in BF16: what such a change brings is measured on
this device, never assumed. Everything goes to one `xray` event; the trace stays in the folder.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function

from labkit.bench import probes
from labkit.process.events import EventLog

FILE_NAME = "xray.json.gz"
WINDOW = "labkit.compute"  # the mark around forward, backward and update
MIN_STEPS = 20  # a run of fewer is a quick look: the x-ray would be a large part of it
COST_S = 0.8  # about what it takes; kept free of a run that has a limit of some seconds
MORE_STEPS = 4  # profiled after a first one has shown that they are cheap to read
MANY_EVENTS = 12_000  # of one step
LONGEST_STEP_S = 1.0  # no x-ray where a step takes longer

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
# or compiling, whose own time is not device work
OPERATOR = re.compile(r"^(?!autograd::engine)\w+::\w|CompiledFxGraph")


def keep_time(job: Any) -> None:
    """Shorten a run that has a limit of some seconds by what the looks behind it will take."""
    if job.xray and job.seconds and job.seconds < 2.5 * COST_S:
        job.xray = False
    elif job.xray and job.seconds:
        job.seconds -= COST_S + probes.HANDOFF_COST_S


def look(
    trainer: Any, batches: Iterator, job: Any, steps: int, folder: Path, log: EventLog
) -> None:
    """Write the `xray` event, or `no_xray` and why there is none. Never ends the run."""
    why = None
    if not job.xray:
        why = "it was switched off, or the run is too short for it"
    elif steps < MIN_STEPS:
        why = f"the run had {steps} steps, an x-ray needs {MIN_STEPS}"
    try:
        if why is None:
            loaded = next(batches)
            batch = trainer.to_device(*loaded)
            start = time.perf_counter()
            trainer.compute(*batch, update=True)
            probes.finish(trainer.device)
            seconds = time.perf_counter() - start
            if seconds <= LONGEST_STEP_S:
                found = profile(trainer, batches, loaded, folder)
                log.write("xray", **found | probes.measure(trainer, *batch))
                return
            why = f"a step takes {seconds:.1f} s: too long to repeat"
    except Exception as error:  # the run itself is complete: its numbers stand
        why = f"{type(error).__name__}: {str(error)[:300]}"
    log.write("no_xray", why=why)


def profile(trainer: Any, batches: Iterator, loaded: tuple, folder: Path) -> dict[str, Any]:
    """Profile real steps, keep their trace in `folder`, return what the calmest was made of."""
    recorded = _recorded(trainer, itertools.repeat(loaded), 1)  # a look at how much is to be read
    events = recorded.kineto_results.events()
    if len(events) < MANY_EVENTS:  # else one step has to do: reading more would take seconds
        recorded = _recorded(trainer, batches, MORE_STEPS)
        events = recorded.kineto_results.events()
    plain = folder / "xray.json"
    recorded.export_chrome_trace(str(plain))
    (folder / FILE_NAME).write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
    plain.unlink()
    return summarise(events, WINDOW)


def _recorded(trainer: Any, batches: Iterator, active: int) -> Any:
    """Run `active` steps under PyTorch's profiler; return it.

    It is the one inside torch.profiler.profile, which would import the compiler (1 s) to ask it one
    thing. Each step is marked as torch.profiler marks it.
    """
    device = "cuda" if trainer.device.type == "cuda" else None
    with profiler(use_device=device, record_shapes=True, use_kineto=True) as recorded:
        for step in range(active):
            with record_function(f"ProfilerStep#{step}"):
                batch = trainer.to_device(*next(batches))
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
        probes.finish(trainer.device)  # its kernels must be in the trace
    return recorded


# -- what the compute was made of ------------------------------------------------------------------


class Op(NamedTuple):
    """An operator with the time that is its own, without the operators it called; ns."""

    name: str
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
    on_host = [e for e in events if e.device_type() == cpu]
    windows = [(e.start_ns(), e.end_ns()) for e in on_host if e.name() == window]
    if not windows:
        raise ValueError("the profiler kept none of the steps")
    start, end = min(windows, key=lambda span: span[1] - span[0])
    inside = [e for e in on_host if start <= e.start_ns() and e.end_ns() <= end]
    ops, covered = _own_times(e for e in inside if e.name() != window)
    by_name, calls = Counter(), Counter(op.name for op in ops)
    for op in ops:
        by_name[op.name] += op.own
    tiny = [op.own for op in ops if op.own < TINY_US * 1e3]
    found = {
        "window_us": end - start, "gap_us": end - start - covered, "tiny_us": sum(tiny),
        "heavy_us": sum(op.own for op in ops if HEAVY.search(op.name)),
        "elementwise_us": sum(op.own for op in ops if ELEMENTWISE.search(op.name)),
        "fusible_us": _fusible_ns(ops),
    }  # fmt: skip
    return {
        "steps": len(windows), "ops": len(ops), "tiny_ops": len(tiny),
        **{name: round(ns / 1e3, 1) for name, ns in found.items()},
        "top": [[n, round(ns / 1e3, 1), calls[n]] for n, ns in by_name.most_common(TOP)],
    }  # fmt: skip


def _own_times(events: Iterable[Any]) -> tuple[list[Op], int]:
    """Return the operators with their own times, and the ns that at least one was running."""
    ops: list[Op] = []
    covered = reach = 0
    stack: list[tuple[int, int]] = []  # (end, index in ops) of the operators that are going on
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
        shapes = [[n for n in shape if isinstance(n, int)] for shape in event.shapes() if shape]
        ops.append(Op(event.name(), end - start, max(map(math.prod, shapes), default=0)))
        stack.append((end, len(ops) - 1))
    return ops, covered


def _fusible_ns(ops: list[Op]) -> int:
    """Return what fusing would save: of each chain all but its longest pass."""
    saved, chain, total, size = 0, [], 0, 0
    for op in [*ops, Op("end", 10**9, 0)]:
        if op.own < TINY_US * 1e3:
            continue
        if MEMORY.search(op.name):
            total += op.own if chain else 0  # room for a result that a fused pass never makes
            continue
        elementwise = ELEMENTWISE.search(op.name)
        if not elementwise or len(chain) >= LONGEST_CHAIN or op.size != size:
            saved, chain, total = saved + total - max(chain, default=total), [], 0
        if elementwise:
            chain.append(op.own)
            total, size = total + op.own, op.size
    return saved
