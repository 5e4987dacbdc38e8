"""Read torch.profiler traces and say where the time of a step went: `trace(path)`.

The rules are those of the TensorBoard plugin, with which it agrees, but for newer categories,
collectives by their kernels' names, and multiply-add kernels with "xmma" in theirs.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.stamps.events import XRAY_NAME
from labkit.stamps.record import Event
from labkit.text import one_line
from labkit.traces.breakdown import GRAPHS, IDLE_CAUSES, Breakdown, TopKernel
from labkit.traces.file import (
    ONE_PER_RANK,
    JsonObject,
    NotATrace,
    TraceError,
    TraceFile,
    files_in,
    holds_several,
)
from labkit.traces.ranks import RankTraces

XRAY_EVENT = "xray_trace"  # what a saved record has instead of the file
RANK_IN_NAME = re.compile(r"(?i)(?:rank|worker)[-_. ]?(\d{1,7})")
TOP = 10  # kernels listed


def trace(path: str | os.PathLike) -> Breakdown | RankTraces:
    """Break down the steps of torch.profiler traces: the average step of a rank, or of every rank.

    Args:
        path: A Chrome trace of one rank as torch.profiler writes it, .json or .json.gz, of any
            version; or a folder or an archive (.tar, .tar.gz) of one such file per rank.

    Where a process drives several devices, a stretch of time is busy if any of them is.
    TraceError: the file cannot be read, is damaged or no profiler trace, has several ranks, no time
    inside steps, or over 1 GiB uncompressed.
    """
    if holds_several(path):
        return _of_ranks(Path(os.fsdecode(path)).absolute())
    return _of_one(TraceFile(path))


def _of_one(file: TraceFile) -> Breakdown:
    """Return where the time went in the average step of the trace of one rank."""
    # Imports pandas, which a run without an x-ray needs not
    from labkit.traces.events import ON_DEVICE, Kind, read_events
    from labkit.traces.steps import TracePieces, find_steps

    events, notes = read_events(file)
    steps, more = find_steps(events)
    notes += more
    pieces = TracePieces(events, steps)
    if not pieces.total:
        raise file.error("has only steps of zero length")
    devices = events.process[events.kind.isin(ON_DEVICE)].nunique()
    on_gpu = devices > 0
    step_us = pieces.us(True)
    busy = {name: pieces.us(mask) / step_us for name, mask in pieces.busy().items()}
    idle = pieces.idle() if on_gpu else {}
    kernels = pieces.kernels()
    kernel_us = kernels.us.sum()
    device_name, capability = _device(file.meta) if on_gpu else (None, None)
    operators = (
        events.name[events.kind == Kind.CPU_OP].cat.remove_unused_categories().cat.categories
    )
    loaders = events.name[events.kind == Kind.DATALOADER]
    graphs = bool(events.name[events.kind == Kind.RUNTIME].str.contains("GraphLaunch").any())
    if devices > 1:
        notes.append(f"{devices} devices: busy is time in which any of them is.")
    if not on_gpu:
        notes.append("No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.")
    elif not (events.launch >= 0).any():
        notes.append("Device work is not tied to launches: the causes of idle time are unknown.")
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
        notes=tuple(notes),
        busy=busy,
        host_work_us=pieces.us(pieces.host_work & idle.get("host", pieces.host_outside)),
        host_where=pieces.host_where(),
        top_kernels=tuple(
            TopKernel(str(each.Index), float(each.us), int(each.calls), bool(each.uses))
            for each in kernels[:TOP].itertuples()
        ),
        tensor_core_share=float(kernels.us[kernels.uses].sum() / kernel_us) if kernel_us else None,
        tensor_core_eligible_share=float(kernels.could_us.sum() / kernel_us) if kernel_us else None,
        trains=bool(operators.str.contains("ackward|^Optimizer[.]").any())
        if len(operators)
        else None,
        kernels_us=(kernels.us / len(steps)).to_dict(),
        lanes=pieces.lanes(),
        began_ns=int(steps[0, 0]),
    )


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


def _of_ranks(path: Path) -> RankTraces:
    """Read the traces of a folder or archive; of several of one rank, the last by name."""
    found = []
    notes = []
    for file in files_in(path):
        try:
            one = _of_one(file)
        except NotATrace:
            notes.append(f"{file.name} is not a profiler trace: left out.")
            continue
        named = RANK_IN_NAME.findall(one.source)
        found.append(replace(one, rank=int(named[-1])) if one.rank is None and named else one)
    if not found:
        raise TraceFile(path).error("holds no profiler trace", ONE_PER_RANK)
    found.sort(key=lambda one: one.source)
    if any(one.rank is None for one in found):
        notes.append("Not every file says its rank: they are numbered in the order of their names.")
        found = [replace(one, rank=number) for number, one in enumerate(found)]
    ranks = {one.rank or 0: one for one in found}
    if len(ranks) < len(found):
        notes.append("Some ranks have several traces: the last by name was read.")
    in_order = tuple(ranks[rank] for rank in sorted(ranks))
    return RankTraces(one_line(path.name), in_order, tuple(notes))


# == the trace of a run's x-ray: a file in its folder; a saved record has what was read from it ==


def xray_of(run: RunData) -> Breakdown | None:
    """Return the Breakdown of the x-ray of `run`; None where there is none that can be read."""
    path = Path(run.path) / XRAY_NAME
    return _of_file(path) if path.is_file() else _of_event(run.event(XRAY_EVENT) or {})


def xray_line(run: RunData) -> str | None:
    """Return the line that keeps the x-ray of `run` in a saved record; None where it has none."""
    found = xray_of(run)
    if found is None:
        return None
    event = {"event": XRAY_EVENT, "t_ns": 0, **found.recorded()}
    return json.dumps(event, allow_nan=False)


@functools.lru_cache(maxsize=16)
def _of_file(path: Path) -> Breakdown | None:
    try:
        return _of_one(TraceFile(path))
    except TraceError:  # cut short by a full disk, say: the run's own numbers stand
        return None


def _of_event(event: Event) -> Breakdown | None:
    """Rebuild a Breakdown from a record, which may be anybody's: None unless all of it fits."""
    try:
        values = fields_in(Breakdown, event)
        values["top_kernels"] = tuple(TopKernel(**kernel) for kernel in values["top_kernels"])
        for name in ("notes", "host_where"):
            values[name] = tuple(values.get(name, ()))
        values.setdefault("cuda_graphs", GRAPHS in values["notes"])  # older records have the note
        found = Breakdown(**values)
        str(found)  # formats every number in it
        return found
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None
