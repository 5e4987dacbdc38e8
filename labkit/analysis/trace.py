"""Read a torch.profiler trace and say where the time of a step went: `trace(path)`.

PyTorch's own reader of these files, the TensorBoard plugin, was removed upstream. This one keeps
its rules (see `step_classes`) and agrees with it. It differs on purpose in three things: it knows
newer category names, it knows NCCL kernels without their operator, and it does not take plain
multiply-add kernels with "xmma" in their name for Tensor Core kernels.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np

from labkit.analysis import trace_names as kinds
from labkit.analysis.step_classes import (
    CLASSES,
    StepClock,
    find_steps,
    length,
    split_by_class,
    split_idle,
)
from labkit.analysis.trace_breakdown import GRAPHS, Breakdown, TopKernel
from labkit.analysis.trace_events import Columns, read_columns
from labkit.analysis.trace_file import TraceError, TraceFile
from labkit.analysis.trace_ranks import Intervals, Rank, split

__all__ = ["Breakdown", "TopKernel", "TraceError", "trace"]

TOP = 10  # kernels listed


def trace(path: str | os.PathLike) -> Breakdown:
    """Break down the steps of a torch.profiler trace.

    Args:
        path: A Chrome trace as torch.profiler writes it, .json or .json.gz, of any version.

    Returns:
        The average step. Where the file holds several ranks, their steps are averaged; where a rank
        drives several devices, a stretch of time counts as `kernel` if any of them runs one, and
        utilization and idle time are averages over the devices. `notes` says so.

    Raises:
        TraceError: The file cannot be read, is damaged, is no profiler trace, holds no time inside
            steps, or is larger than 2 GiB uncompressed.
    """
    file = TraceFile(path)
    columns = read_columns(file)
    try:
        ranks = split(columns)
    except ValueError as error:
        raise file.error(str(error), "give the file of one rank") from None
    total: Counter = Counter()
    kernels: Counter = Counter()
    calls: Counter = Counter()
    notes = dict.fromkeys(file.notes)  # a set that keeps the order
    for rank in ranks:
        steps = find_steps(rank)
        notes |= dict.fromkeys(steps.notes)
        clock = StepClock(steps.intervals)
        if clock.total:
            total["steps"] += len(steps.intervals.start)
            total["ns"] += clock.total
            total.update(split_by_class(rank, clock))
            _add_device(rank, clock, columns, total, kernels, calls)
    if not total["ns"]:
        raise file.error("holds steps that take no time")
    notes |= dict.fromkeys(_odd(ranks, total))
    return _breakdown(file, columns, ranks, total, kernels, calls, tuple(notes))


def _add_device(
    rank: Rank, clock: StepClock, columns: Columns, total: Counter, kernels: Counter, calls: Counter
) -> None:
    """Add one rank's device time to `total`, and its kernels to `kernels` (ns) and `calls`."""
    is_kernel = (rank.kind == kinds.KERNEL) | (rank.kind == kinds.COMMUNICATION_KERNEL)
    active = rank.place[is_kernel] if is_kernel.any() else rank.place
    inside = clock.inside(rank.device)
    spent = inside.end - inside.start
    for device in np.unique(active):
        own = is_kernel & (rank.place == device)
        total["devices"] += 1
        total["device_ns"] += clock.total
        total["busy"] += length(Intervals(inside.start[own], inside.end[own]))
        for cause, amount in split_idle(rank, device, clock).items():
            total[f"idle_{cause}"] += amount

    counted = is_kernel & (spent > 0)
    times = np.bincount(rank.name[counted], weights=spent[counted])
    for name, count in enumerate(np.bincount(rank.name[counted])):
        if count:
            kernels[name] += float(times[name])
            calls[name] += int(count)
    on_cores = np.array([kinds.uses_tensor_cores(name) for name in columns.kernels] or [False])
    uses = counted & on_cores[rank.name]
    total["kernel_time"] += float(spent[counted].sum(dtype=float))
    total["core_time"] += float(spent[uses].sum(dtype=float))
    # As in the plugin, an operator that was seen to use Tensor Cores is one that can.
    total["eligible_time"] += float(spent[counted & (rank.eligible | uses)].sum(dtype=float))

    copies, under = (
        Intervals(inside.start[which], inside.end[which])
        for which in (rank.kind == kinds.MEMCPY, is_kernel)
    )
    total["copy"] += length(copies)
    both = Intervals(*(np.concatenate(pair) for pair in zip(copies, under, strict=True)))
    total["copy_overlap"] += length(copies) + length(under) - length(both)


def _odd(ranks: list[Rank], total: Counter) -> list[str]:
    """Say what about the trace a reader of the numbers should know."""
    notes = []
    if len(ranks) > 1:
        notes.append(f"{len(ranks)} ranks (processes) in the file: their steps are averaged.")
    if total["devices"] > len(ranks):
        notes.append(
            f"{total['devices']} devices: kernel time is time with a kernel on any of a rank's "
            "devices, utilization and idle time are averages over devices."
        )
    if not total["devices"]:
        notes.append("No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.")
    elif not any((rank.launch >= 0).any() for rank in ranks):
        notes.append("Device work is not tied to launches: the causes of idle time are unknown.")
    if total["devices"] and not total["kernel_time"]:
        notes.append("No kernel falls inside the steps.")
    if any(rank.graph_launches for rank in ranks):
        notes.append(GRAPHS)
    return notes


def _breakdown(
    file: TraceFile,
    columns: Columns,
    ranks: list[Rank],
    total: Counter,
    kernels: Counter,
    calls: Counter,
    notes: tuple[str, ...],
) -> Breakdown:
    def ratio(part: str, whole: str) -> float | None:
        return total[part] / total[whole] if total[whole] else None

    def per_step(ns: int) -> float:
        return ns / total["steps"] / 1000

    # Per device: a rank with two idle GPUs waits once, not twice.
    weight = total["ns"] / total["device_ns"] if total["device_ns"] else None
    return Breakdown(
        source=os.path.basename(file.path),
        device_kind="gpu" if total["devices"] else "cpu",
        device_name=_device_name(file, columns),
        steps=total["steps"],
        step_us=per_step(total["ns"]),
        **{f"{name}_us": per_step(total[name]) for name in (*CLASSES, "other")},
        gpu_utilization=ratio("busy", "device_ns"),
        tensor_core_share=ratio("core_time", "kernel_time"),
        tensor_core_eligible_share=ratio("eligible_time", "kernel_time"),
        idle={
            f"{cause}_us": weight and per_step(total[f"idle_{cause}"]) * weight
            for cause in ("host_wait", "kernel_wait", "other")
        },
        copy_overlap_share=ratio("copy_overlap", "copy"),
        top_kernels=tuple(
            TopKernel(
                columns.kernels[n], ns / 1000, calls[n], kinds.uses_tensor_cores(columns.kernels[n])
            )
            for n, ns in kernels.most_common(TOP)
        ),
        rank=_rank_number(file),
        ranks=tuple(rank.label for rank in ranks),
        notes=notes,
    )


def _device_name(file: TraceFile, columns: Columns) -> str | None:
    listed = file.meta.get("deviceProperties")
    listed = [entry for entry in listed if type(entry) is dict] if type(listed) is list else []
    names = {str(d.get("name")) for d in listed if d.get("id") in columns.devices and d.get("name")}
    return names.pop()[:100] if len(names) == 1 else None


def _rank_number(file: TraceFile) -> int | None:
    info = file.meta.get("distributedInfo")
    number = info.get("rank") if type(info) is dict else None
    return int(number) if type(number) is str and number.isdecimal() and len(number) < 8 else None
