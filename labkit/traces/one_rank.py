"""Break down the trace of one rank: from the events of its file to the times of a step."""

from __future__ import annotations

import re

import numpy as np
import pandas

from labkit.text import one_line
from labkit.traces.breakdown import GRAPHS, Breakdown, TopKernel
from labkit.traces.classes import IDLE_CAUSES, ON_DEVICE, Kind
from labkit.traces.events import read_events
from labkit.traces.file import JsonObject, TraceFile
from labkit.traces.steps import TracePieces, find_steps

TOP = 10  # kernels listed


def break_down(file: TraceFile) -> Breakdown:
    """Return where the time went in the average step of a trace."""
    events = read_events(file)
    steps, notes = find_steps(events)
    pieces = TracePieces(events, steps)
    if not pieces.total:
        raise file.error("has only steps of zero length")
    devices = events.process[events.kind.isin(ON_DEVICE)].nunique()
    on_gpu = devices > 0
    step_us = pieces.us(True)
    busy = {name: pieces.us(mask) / step_us for name, mask in pieces.busy().items()}
    idle = pieces.idle() if on_gpu else {}
    host_work = pieces.host_work & idle.get("host", pieces.host_outside)
    kernels = pieces.kernels()
    by_name = kernels.groupby("name", observed=True).agg(
        us=("us", "sum"), calls=("us", "count"), uses=("uses", "first")
    )
    by_name = by_name.sort_values("us", ascending=False, kind="stable")
    device_name, capability = _device(file.meta) if on_gpu else (None, None)
    loaders = events.name[events.kind == Kind.DATALOADER]
    calls = events.name[events.kind == Kind.RUNTIME]
    graphs = bool(calls.str.contains("GraphLaunch").any())
    if devices > 1:
        notes.append(f"{devices} devices: busy is time in which any of them is.")
    if not on_gpu:
        notes.append("No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.")
    elif not (events.launch >= 0).any():
        notes.append("Device work is not tied to launches: the causes of idle time are unknown.")
    if on_gpu and kernels.empty:
        notes.append("No kernel falls inside the steps.")
    if graphs:
        notes.append(GRAPHS)
    return Breakdown(
        source=file.name,
        device_kind="gpu" if on_gpu else "cpu",
        device_name=device_name,
        compute_capability=capability,
        rank=_rank(file.meta),
        loader_workers=None if loaders.empty else bool(loaders.str.contains("_Multi").any()),
        cuda_graphs=graphs,
        steps=len(steps),
        step_us=step_us,
        **{f"{name}_us": pieces.us(mask) for name, mask in pieces.by_class().items()},
        gpu_utilization=busy.get("kernel_busy"),
        idle={f"{cause}_us": pieces.us(idle[cause]) if on_gpu else None for cause in IDLE_CAUSES},
        notes=tuple(dict.fromkeys([*file.notes, *notes])),
        busy=busy,
        host_work_us=pieces.us(host_work),
        host_where=pieces.host_where(),
        top_kernels=tuple(
            TopKernel(name, float(us), int(calls), bool(uses))
            for name, us, calls, uses in by_name[:TOP].itertuples()
        ),
        tensor_core_share=_weighted(kernels.uses, kernels.us),
        tensor_core_eligible_share=_weighted(kernels.could, kernels.us),
        lanes=pieces.lanes(),
        began_ns=int(steps[0, 0]),
        detail={
            "kernels": (by_name.us / len(steps)).to_dict(),
            "operators": pieces.operator_times(),
        },
    )


def _weighted(shares: pandas.Series, weights: pandas.Series) -> float | None:
    """Return the mean of shares; None of none."""
    return None if shares.empty else float(np.average(shares, weights=weights))


def _rank(meta: JsonObject) -> int | None:
    """Return the rank that a file says it is of; None where it does not."""
    info = meta.get("distributedInfo")
    rank = str(info.get("rank")) if isinstance(info, dict) else ""
    return int(rank) if re.fullmatch("[0-9]{1,7}", rank) else None


def _device(meta: JsonObject) -> tuple[str | None, str | None]:
    """Return name and compute capability of the devices; None where unknown, or they differ."""
    listed = meta.get("deviceProperties")
    devices = {
        (str(each.get("name") or ""), f"{each.get('computeMajor')}.{each.get('computeMinor')}")
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    }
    if len(devices) != 1:
        return None, None
    [(name, version)] = devices
    is_version = re.fullmatch(r"\d{1,3}\.\d{1,3}", version)
    return one_line(name[:100]) or None, version if is_version else None
