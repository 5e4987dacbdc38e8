"""The x-ray: a few steps after a run's last one under the profiler, then in other settings."""

from __future__ import annotations

import gzip
import math
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch._C._autograd import DeviceType, _KinetoEvent
from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function

from labkit.bench import devices, handoff
from labkit.bench.batch_contents import Batch
from labkit.bench.loop import Trains
from labkit.bench.optional import write_or_why
from labkit.bench.step_variants import other_settings
from labkit.process.events import XRAY_NAME, EventLog
from labkit.spec import Job

Loaded: TypeAlias = tuple[Batch, torch.Tensor]  # a batch on the host, and its labels

WINDOW = "labkit.compute"  # the mark around forward, backward and update
MIN_STEPS = 20  # a run of fewer is a quick look: the x-ray would be a large part of it
METER_S = 3.0  # of a run on a GPU, at least: the driver's window is up to a second
COST_S = 0.8  # about what it takes; kept free of a run that has a limit of some seconds
MORE_STEPS = 4  # profiled after a first one has shown that they are cheap to read
MANY_EVENTS = 12_000  # of one step
LONGEST_STEP_S = 1.0  # no x-ray where a step takes longer

TINY_NS = 10_000  # an operator this short is mostly its own dispatch
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


def keep_time(job: Job) -> None:
    """Shorten a run that has a limit of some seconds by what the looks after it will take."""
    if job.xray and job.seconds and job.seconds < 2.5 * COST_S:
        job.xray = False
    elif job.xray and job.seconds:
        least = min(job.seconds, METER_S) if job.device.startswith("cuda") else 0.0
        job.seconds = max(job.seconds - COST_S - handoff.COST_S, least)


def look(
    trainer: Trains, batches: Iterator[Loaded], job: Job, steps: int, folder: Path, log: EventLog
) -> None:
    """Write the `xray` event, or `no_xray` and why there is none. Never ends the run."""
    if not job.xray:
        log.write("no_xray", why="it was switched off, or the run is too short for it")
    elif steps < MIN_STEPS:
        log.write("no_xray", why=f"the run had {steps} steps, an x-ray needs {MIN_STEPS}")
    else:
        write_or_why(log, "xray", lambda: _xray(trainer, batches, folder))


def _xray(trainer: Trains, batches: Iterator[Loaded], folder: Path) -> dict[str, float | None]:
    """Return what a step is made of, and what it takes in other settings."""
    loaded = next(batches)
    images, labels = trainer.to_device(*loaded)
    start = time.perf_counter()
    trainer.compute(images, labels, update=True)
    devices.finish(trainer.device)
    seconds = time.perf_counter() - start
    if seconds > LONGEST_STEP_S:
        raise RuntimeError(f"a step takes {seconds:.1f} s: too long to repeat")
    found = profile(trainer, batches, loaded, folder)
    return {**found, **other_settings(trainer, images, labels)}


def profile(
    trainer: Trains, batches: Iterator[Loaded], loaded: Loaded, folder: Path
) -> dict[str, float]:
    """Profile real steps, keep their trace in `folder`, return what the calmest was made of."""
    recorded, events = _recorded(trainer, [loaded])  # how much is to be read?
    if len(events) < MANY_EVENTS:  # else one step has to do: reading more would take seconds
        recorded, events = _recorded(trainer, [next(batches) for _ in range(MORE_STEPS)])
    plain = folder / "xray.json"
    recorded.export_chrome_trace(str(plain))
    (folder / XRAY_NAME).write_bytes(gzip.compress(plain.read_bytes(), compresslevel=6))
    plain.unlink()
    return summarise(events, WINDOW)


def _recorded(trainer: Trains, batches: list[Loaded]) -> tuple[profiler, list[_KinetoEvent]]:
    """Run some steps under the profiler inside torch.profiler, which imports the compiler."""
    device = "cuda" if trainer.device.type == "cuda" else None
    recorded = profiler(use_device=device, record_shapes=True, use_kineto=True)
    with recorded:
        for step, loaded in enumerate(batches):
            with record_function(f"ProfilerStep#{step}"):  # torch.profiler's own mark
                batch = trainer.to_device(*loaded)
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
        devices.finish(trainer.device)  # its kernels must be in the trace
    results = recorded.kineto_results
    return recorded, [] if results is None else results.events()


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
    inside = []
    for event in on_host:
        if start <= event.start_ns() and event.end_ns() <= end and event.name() != window:
            inside.append(event)
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
    """Return what fusing would save: of each chain all but its longest pass."""
    saved = 0
    chain: list[int] = []  # passes over the same data
    between = 0  # room for results that a fused pass never makes
    size = 0
    for each in operators:
        if each.own < TINY_NS:
            continue
        if MEMORY.search(each.name):
            between += each.own if chain else 0
            continue
        is_elementwise = ELEMENTWISE.search(each.name)
        if not is_elementwise or len(chain) >= LONGEST_CHAIN or each.size != size:
            saved += _saved_ns(chain, between)
            chain = []
            between = 0
        if is_elementwise:
            chain.append(each.own)
            size = each.size
    return saved + _saved_ns(chain, between)


def _saved_ns(chain: list[int], between: int) -> int:
    return sum(chain) + between - max(chain) if chain else 0
