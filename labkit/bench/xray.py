"""The x-ray: a few steps after a run's last one under the profiler, then in other settings."""

from __future__ import annotations

import gzip
import itertools
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent, Interval

from labkit.bench import formats
from labkit.bench.data import Batch
from labkit.bench.loop import Trainer
from labkit.instruments import machine
from labkit.stamps.events import XRAY_NAME

WINDOW = "labkit.compute"  # the mark around forward, backward and update
STEPS = 4  # that are profiled; fewer where they take so long that reading them would be seconds
PROFILED_S = 0.1
LONGEST_STEP_S = 1.0  # no x-ray where a step takes longer
BUDGET_S = 0.45  # for rounds of steps in other settings; at least two are done
FEW_ROWS = 8  # of a batch: a quarter of it must have two, which normalising a batch needs

TINY_US = 10  # an operator this short is mostly its own dispatch
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


def look(trainer: Trainer, batches: Iterator[Batch], folder: Path) -> dict[str, float]:
    """Return the `xray` event: what a step is made of, and what it takes in other settings."""
    batch = trainer.to_device(*next(batches))
    if (seconds := _compute_s(trainer, *batch, trainer.job.precision)) > LONGEST_STEP_S:
        raise RuntimeError(f"a step takes {seconds:.1f} s: too long to repeat")
    recorded = _profile_steps(trainer, batches)
    plain = folder / "xray.json"
    recorded.export_chrome_trace(str(plain))
    (folder / XRAY_NAME).write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
    plain.unlink()
    return {**summarise(recorded.function_events or []), **other_settings(trainer, *batch)}


def _profile_steps(trainer: Trainer, batches: Iterator[Batch]) -> profiler:
    """Run some steps under autograd's profiler: torch.profiler, around it, imports the compiler."""
    device = "cuda" if trainer.device.type == "cuda" else None
    recorded = profiler(use_device=device, record_shapes=True, use_kineto=True)
    with recorded:
        start = time.perf_counter()
        for step in range(STEPS):
            loaded = next(batches)
            with record_function(f"ProfilerStep#{step}"):  # torch.profiler's own mark
                batch = trainer.to_device(*loaded)
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
            if time.perf_counter() - start > PROFILED_S:
                break
        machine.finish(trainer.device)  # its kernels must be in the trace
    return recorded


def summarise(events: list[FunctionEvent]) -> dict[str, float]:
    """Summarise what the calmest of the profiled steps was made of; times in µs."""
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    window = min(
        (event.time_range for event in on_host if event.name == WINDOW), key=Interval.elapsed_us
    )
    operators = [
        event
        for event in on_host
        if window.start <= event.time_range.start
        and event.time_range.end <= window.end
        and OPERATOR.search(event.name)
    ]
    own_us = [event.self_cpu_time_total for event in operators]
    took_us = window.elapsed_us()
    return {
        "window_us": took_us,
        "gap_us": max(0.0, took_us - sum(own_us)),  # no operator ran
        "tiny_us": sum(each for each in own_us if each < TINY_US),
        "fusible_us": _fusible_us(operators),
    }


def _fusible_us(operators: list[FunctionEvent]) -> float:
    """Return what fusing would save: of passes over the same data in a row all but the longest."""
    passes = [
        each
        for each in sorted(operators, key=lambda each: each.time_range.start)
        if each.self_cpu_time_total >= TINY_US and not MEMORY.search(each.name)
    ]
    saved = 0.0
    for (is_elementwise, _size), chain in itertools.groupby(passes, _kind_of_pass):
        if is_elementwise:
            times = [each.self_cpu_time_total for each in chain]
            saved += sum(times) - max(times)
    return saved


def _kind_of_pass(operator: FunctionEvent) -> tuple[bool, int]:
    """Return whether it is elementwise, and the elements of its largest input."""
    shapes: Any = operator.input_shapes or ()  # that of a list of tensors is nested
    sizes = [math.prod(n for n in shape if isinstance(n, int)) for shape in shapes]
    return bool(ELEMENTWISE.search(operator.name)), max(sizes, default=0)


def other_settings(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """Time one step's compute as it is, with another batch, and in BF16, in turn; then compare.

    `fixed_share` is the part (0 to 1) that does not grow with the batch. The weights move on.
    What is compared are neighbours: a machine that others use has another speed a second later.
    """
    if trainer.job.compile:  # it would compile anew
        return {}
    whole = len(labels)
    # A quarter is quick, and least disturbed; but to a GPU it may be as much work as the whole
    quick = trainer.device.type == "cpu" and whole >= FEW_ROWS
    size = whole // 4 if quick else 2 * whole
    rows = torch.arange(size, device=labels.device) % whole
    own = trainer.job.precision
    ways = [(images, labels, own), (images[rows], labels[rows], own)]
    if own in ("fp32", "ieee") and not formats.why_not("bf16", trainer.device):
        ways.append((images, labels, "bf16"))
    rounds = []
    started = time.perf_counter()
    while len(rounds) < 3 or time.perf_counter() - started < BUDGET_S:
        rounds.append([_compute_s(trainer, *way) for way in ways])
    seconds = np.array(rounds[1:])  # the first warms up: on a GPU it loads kernels
    resized, *bf16 = np.median(seconds[:, 1:] / seconds[:, :1], axis=0).tolist()
    share = size / whole
    fixed = (resized - share) / (1 - share)  # of the straight line through both
    found = {"fixed_share": min(max(fixed, 0.0), 1.0)}
    return found | ({"bf16_speedup": 1 / bf16[0]} if bf16 else {})


def _compute_s(
    trainer: Trainer, images: torch.Tensor, labels: torch.Tensor, precision: str
) -> float:
    """Return how long one compute takes on the device, s."""
    # On a CPU not the time in which others had the core
    clock = time.thread_time if trainer.device.type == "cpu" else time.perf_counter
    own = trainer.job.precision
    trainer.job.precision = precision
    try:
        machine.finish(trainer.device)
        start = clock()
        trainer.compute(images, labels, update=True)
        machine.finish(trainer.device)
        return clock() - start
    finally:
        trainer.job.precision = own
