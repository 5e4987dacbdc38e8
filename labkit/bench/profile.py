"""What is measured behind a run's last step: its x-ray, its step's other settings, a handoff."""

from __future__ import annotations

import gzip
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile as profiler
from torch.autograd.profiler import record_function

from labkit.bench import formats, machine
from labkit.bench.process import worker_dies_with_bench
from labkit.bench.user_dataset import mapped
from labkit.process.events import EventLog, now_ns

FILE_NAME = "xray.json.gz"
WINDOW = "labkit.compute"  # the mark around forward, backward and update
MIN_STEPS = 20  # a run of fewer is a quick look: the x-ray would be a large part of it
METER_S = 3.0  # of a run on a GPU, at least: the driver's window is up to a second
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

ROUNDS, BUDGET_S = 7, 0.45  # for all rounds; at least two are done
FEW_ROWS = 8  # of a batch: a quarter of it must have two, which normalising a batch needs
HOPELESS = 3.0  # BF16 so much slower in its first step is not tried again

HANDOFF_ROUNDS, HANDOFF_BUDGET_S = 12, 0.35
HANDOFF_COST_S = 0.4  # about what it takes with the worker's start
HANDOFF_MIN_STEPS = 8  # of a run: a shorter one is a quick look
COLD_EVERY = 3  # rounds: one behind a long wait, the others right behind a step
FIRST = 2  # rounds that are left out: the worker starts
COLD_S = 0.035  # after such a wait the model finds cold caches and a core that was asleep
SETTLE_S = 0.004  # between two batches where there is no step that could be tried


def keep_time(job: Any) -> None:
    """Shorten a run that has a limit of some seconds by what the looks behind it will take."""
    if job.xray and job.seconds and job.seconds < 2.5 * COST_S:
        job.xray = False
    elif job.xray and job.seconds:
        least = min(job.seconds, METER_S) if job.device.startswith("cuda") else 0.0
        job.seconds = max(job.seconds - COST_S - HANDOFF_COST_S, least)


def look(trainer: Any, batches: Iterator, job: Any, steps: int, folder: Path, log: Any) -> None:
    """Write the `xray` event, or `no_xray` and why there is none. Never ends the run."""
    if not job.xray or steps < MIN_STEPS:
        short = f"the run had {steps} steps, an x-ray needs {MIN_STEPS}"
        off = "it was switched off, or the run is too short for it"
        log.write("no_xray", why=short if job.xray else off)
        return
    try:
        loaded = next(batches)
        batch = trainer.to_device(*loaded)
        start = time.perf_counter()
        trainer.compute(*batch, update=True)
        machine.finish(trainer.device)
        if (seconds := time.perf_counter() - start) > LONGEST_STEP_S:
            raise RuntimeError(f"a step takes {seconds:.1f} s: too long to repeat")
        found = profile(trainer, batches, loaded, folder)
        log.write("xray", **found | other_settings(trainer, *batch))
    except Exception as error:  # the run itself is complete: its numbers stand
        log.write("no_xray", why=f"{type(error).__name__}: {str(error)[:300]}")


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
    """Run `active` steps under the profiler inside torch.profiler, which imports the compiler."""
    device = "cuda" if trainer.device.type == "cuda" else None
    with profiler(use_device=device, record_shapes=True, use_kineto=True) as recorded:
        for step in range(active):
            with record_function(f"ProfilerStep#{step}"):  # torch.profiler's own mark
                batch = trainer.to_device(*next(batches))
                with record_function(WINDOW):
                    trainer.compute(*batch, update=True)
            trainer.after_step()  # its kernels, if any, are none of the step's compute
        machine.finish(trainer.device)  # its kernels must be in the trace
    return recorded


class Op(NamedTuple):
    """An operator with the time that is its own, without the operators it called; ns."""

    name: str
    own: int
    size: int  # elements of its largest input


def summarise(events: list, window: str) -> dict[str, Any]:
    """Summarise profiler events inside the shortest of the marks named `window`; µs a step."""
    cpu = DeviceType.CPU
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
        # gap: no operator ran; fusible: what chains of elementwise operators save as one pass
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


def other_settings(trainer: Any, images: Any, labels: torch.Tensor) -> dict[str, float | None]:
    """Time one step's compute as it is, with another batch, and in BF16, in turn; then compare.

    `fixed_share` is the part (0 to 1) that does not grow with the batch. The weights move on.
    What is compared are neighbours: a machine that others use has another speed a second later.
    """
    asked, batch = trainer.job.precision, (images, labels)
    kinds = {"plain": (*batch, asked)}
    sizes = [1]
    rows = 0  # of the other batch
    if not (trainer.job.compile or hasattr(trainer.model, "_orig_mod")):  # it would compile anew
        mapped(batch, lambda part: sizes.append(rows_of(part)))
        # A quarter is quick, and least disturbed; but to a GPU it may be as much work as the whole
        quick = trainer.device.type == "cpu" and max(sizes) >= FEW_ROWS
        rows = max(sizes) // 4 if quick else 2 * max(sizes)
        kinds["resized"] = (*mapped(batch, lambda part: resized(part, rows)), asked)
        if asked == "fp32" and not formats.lacks("bf16", trainer.device):
            kinds["bf16"] = (*batch, "bf16")
    times: dict[str, list[float]] = {name: [] for name in kinds}
    started = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for name, kind in list(kinds.items()):
            try:
                seconds = _timed(trainer, *kind)
            except RuntimeError as error:
                if name == "plain" or not machine.refused(error):
                    raise
                trainer.optimizer.zero_grad(set_to_none=True)
                del kinds[name], times[name]  # no room for it: the others stand
                continue
            slower = False
            if turn:  # the first of each warms up
                times[name].append(seconds)
                slower = turn > 1 and seconds > times["plain"][-1]
            elif name == "bf16" and seconds > HOPELESS * _timed(trainer, *kinds["plain"]):
                times[name].append(seconds)
                slower = True
            if name == "bf16" and slower:
                del kinds[name]  # the time is better spent on the others
        if turn >= 2 and time.perf_counter() - started > BUDGET_S:
            break
    plain = times["plain"]
    ratio = {name: median(map(truediv, times[name], plain)) for name in times}
    fixed = None
    if "resized" in ratio:  # of the straight line through both
        size = rows / max(sizes)
        fixed = min(max((ratio["resized"] - size) / (1 - size), 0.0), 1.0)
    return {
        "fixed_share": fixed,
        "bf16_speedup": 1 / ratio["bf16"] if "bf16" in ratio else None,
    }


def rows_of(part: Any) -> int:
    """Return the length of a tensor in a batch: its samples, as a rule; 0 for all else."""
    return part.shape[0] if torch.is_tensor(part) and part.dim() else 0


def resized(part: Any, rows: int) -> Any:
    """Return so many rows of a tensor, all of them twice where there are fewer."""
    if not rows_of(part):
        return part
    return part[:rows] if rows <= len(part) else torch.cat([part, part])


def _timed(trainer: Any, images: Any, labels: torch.Tensor, precision: str) -> float:
    """Return how long one compute takes on the device, s."""
    on_cpu, asked = trainer.device.type == "cpu", trainer.job.precision
    clock = time.thread_time if on_cpu else time.perf_counter  # not the time others had the core
    trainer.job.precision = precision
    try:
        machine.finish(trainer.device)
        start = clock()
        trainer.compute(images, labels, update=True)
        machine.finish(trainer.device)
        return clock() - start
    finally:
        trainer.job.precision = asked


class Ready(torch.utils.data.Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: tuple[torch.Tensor, ...]):
        self.batch, self.before = batch, None

    def __len__(self) -> int:
        return HANDOFF_ROUNDS + 4  # more than are taken: the last are prepared as the others

    def __getitem__(self, _: int) -> tuple:
        now = time.process_time_ns()
        between = 0 if self.before is None else now - self.before
        start = time.thread_time_ns()
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        shared = time.thread_time_ns()
        for tensor in self.batch:
            tensor.clone()
        clone = time.thread_time_ns() - shared
        self.before = time.process_time_ns()
        return *batch, between, max(0, shared - start - clone)


def hand_over(batch: tuple[torch.Tensor, ...], steps: int, log: EventLog, trainer: Any) -> None:
    """Write the `handoff` event, or why there is none. Never ends the run.

    Batches are taken right behind a step: at rest, taking one costs up to five times as much.
    """
    if steps < HANDOFF_MIN_STEPS:
        return
    if trainer is not None and trainer.device.type != "cpu":
        trainer = None  # a device of its own leaves the host's caches as they are
    try:
        log.write("handoff", **_handoff_costs(batch, trainer))
    except Exception as error:  # the run itself is complete: its numbers stand
        log.write("no_handoff", why=f"{type(error).__name__}: {str(error)[:300]}")


def _handoff_costs(batch: tuple[torch.Tensor, ...], trainer: Any) -> dict[str, float | None]:
    """Hand `batch` over a few times, let `trainer`, if any, train on it; return medians in µs."""
    care = {"worker_init_fn": worker_dies_with_bench, "timeout": 20}
    loader = torch.utils.data.DataLoader(Ready(batch), batch_size=None, num_workers=1, **care)
    rows, warm, cold, begun = [], [], [], now_ns()
    iterator = iter(loader)
    received = next(iterator)
    for turn in range(HANDOFF_ROUNDS):
        late, touch = turn % COLD_EVERY == 0, 0
        if trainer is None or late:
            time.sleep(COLD_S if trainer else SETTLE_S)
        wall = now_ns()
        received = next(iterator)
        wall = now_ns() - wall
        if trainer is None:  # what reading it the first time takes longer than the second
            start = time.thread_time_ns()
            received[0].sum()
            middle = time.thread_time_ns()
            received[0].sum()
            touch = 2 * middle - start - time.thread_time_ns()
        else:
            start = time.thread_time_ns()
            trainer.compute(*trainer.to_device(*received[:-2]), update=True)
            (cold if late else warm).append(time.thread_time_ns() - start)
        if trainer is None or not late:
            rows.append((wall, touch, *received[-2:]))
        if now_ns() - begun > HANDOFF_BUDGET_S * 1e9 and len(rows) > FIRST + 1:
            break
    wall, touch, between, share = map(median, zip(*rows[FIRST:], strict=True))
    return {  # main: from asking for a batch that is there to having it; share, worker: CPU time
        "main_wall_us": wall / 1e3, "touch_us": max(0.0, touch / 1e3),
        "share_us": share / 1e3, "worker_us": between / 1e3,
        "warm_us": median(warm[1:]) / 1e3 if warm else None,
        "cold_us": median(cold[1:]) / 1e3 if len(cold) > 2 else None,
        "bytes": sum(tensor.nbytes for tensor in batch),
    }  # fmt: skip
