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

import numpy as np

from labkit.results.run_data import RunData
from labkit.stamps.event_shapes import fields_in
from labkit.stamps.events import XRAY_NAME
from labkit.stamps.record import Event
from labkit.text import one_line
from labkit.traces.breakdown import Breakdown, RankTraces
from labkit.traces.file import (
    ONE_PER_RANK,
    JsonObject,
    NotATrace,
    TraceError,
    TraceFile,
    files_in,
)

XRAY_EVENT = "xray_trace"  # what a saved record has instead of the file
ARCHIVES = (".tar", ".tar.gz", ".tgz")


def trace(path: str | os.PathLike) -> Breakdown | RankTraces:
    """Break down the steps of torch.profiler traces: the average step of a rank, or of every rank.

    Args:
        path: A Chrome trace of one rank as torch.profiler writes it, .json or .json.gz, of any
            version; or a folder or an archive (.tar, .tar.gz, .tgz) of one such file per rank.

    Where a process drives several devices, a stretch of time is busy if any of them is.
    TraceError: the file cannot be read, is damaged or no profiler trace, has several ranks, no time
    inside steps, or over 1 GiB uncompressed.
    """
    name = os.fsdecode(path)
    if name.endswith(ARCHIVES) or os.path.isdir(name):
        return _of_ranks(Path(name).absolute())
    return _of_one(TraceFile(path))


def _of_one(file: TraceFile) -> Breakdown:
    """Return where the time went in the average step of the trace of one rank."""
    # Imports pandas, which a run without an x-ray needs not
    from labkit.traces.events import KERNELS, Kind, read_events
    from labkit.traces.steps import TracePieces, find_steps

    events, notes = read_events(file)
    steps, more = find_steps(events)
    notes += more
    pieces = TracePieces(events, steps)
    if not pieces.total:
        raise file.error("has only steps of zero length")
    step_us = pieces.us(True)
    idle = pieces.idle() if pieces.on_gpu else {}
    kernels = pieces.kernels()
    kernel_us = kernels.total_us.sum()
    tensor_core, eligible = (
        float(us / kernel_us) if kernel_us else None
        for us in (kernels.total_us[kernels.tensor_core].sum(), kernels.eligible_us.sum())
    )
    device_name, capability = _device(file.meta) if pieces.on_gpu else ("CPU", None)
    names = {kind: events.name[events.kind == kind].str for kind in Kind}
    if not pieces.on_gpu:
        notes.append("No device activity: a CPU run, or recorded without ProfilerActivity.CUDA.")
    elif not (events.launch >= 0).any():
        notes.append("Device work is not tied to launches: the causes of idle time are unknown.")
    if names[Kind.RUNTIME].contains("GraphLaunch").any():
        notes.append("CUDA graphs were launched: some profilers miss the kernels inside them.")
    return Breakdown(
        source=file.name,
        device_name=device_name,
        compute_capability=capability,
        rank=_rank(file.meta),
        loader_workers=bool(names[Kind.DATALOADER].contains("_Multi").any()),
        steps=len(steps),
        step_us=step_us,
        **{f"{name}_us": pieces.us(mask) for name, mask in pieces.by_class().items()},
        gpu_utilization=pieces.us(pieces.active(*KERNELS)) / step_us if pieces.on_gpu else None,
        idle={f"{cause}_us": pieces.us(mask) for cause, mask in idle.items()},
        notes=notes,
        busy={name: pieces.us(mask) / step_us for name, mask in pieces.busy().items()},
        host_work_us=pieces.us(pieces.host_work & idle.get("host", pieces.host_outside)),
        host_where=pieces.host_where(),
        tensor_core_share=tensor_core,
        tensor_core_eligible_share=eligible,
        kernels_us=(kernels.total_us / len(steps)).to_dict(),
        lanes=pieces.lanes(),
        began_ns=int(steps[0, 0]),
        path=None if file.member else os.path.abspath(file.path),
    )


def _rank(meta: JsonObject) -> int | None:
    """Return the rank that a file says it is of; None where it does not."""
    info = meta.get("distributedInfo")
    rank = str(info.get("rank")) if isinstance(info, dict) else ""
    return int(rank) if re.fullmatch("[0-9]{1,7}", rank) else None


def _device(meta: JsonObject) -> tuple[str, str | None]:
    """Return name and compute capability of the devices: "GPU", None where they are not known."""
    listed = meta.get("deviceProperties")
    first = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(first, dict):
        return "GPU", None
    version = f"{first.get('computeMajor')}.{first.get('computeMinor')}"
    is_version = re.fullmatch(r"\d{1,3}\.\d{1,3}", version)
    return one_line(str(first.get("name") or "GPU")[:100]), version if is_version else None


def _of_ranks(path: Path) -> RankTraces:
    """Read the traces of a folder or archive: each file is a rank of its own, or says whose.

    Of several that say the same, the last by name is read.
    """
    found = []
    notes = []
    for file in files_in(path):
        try:
            found.append(_of_one(file))
        except NotATrace:
            notes.append(f"{file.name} is not a profiler trace: left out.")
    if not found:
        raise TraceFile(path).error("holds no profiler trace", ONE_PER_RANK)
    found.sort(key=lambda one: one.source)
    ranks = {one.rank: one for one in found if one.rank is not None}
    unnamed = [one for one in found if one.rank is None]
    if len(ranks) + len(unnamed) < len(found):
        notes.append("Some ranks have several traces: the last by name was read.")
    if ranks and unnamed:
        notes.append("Files that do not say their rank have the numbers that are free, by name.")
    free = sorted({*range(len(found))} - ranks.keys())
    ranks |= {rank: replace(one, rank=rank) for rank, one in zip(free, unnamed, strict=False)}
    in_order = tuple(ranks[rank] for rank in sorted(ranks))
    return RankTraces(one_line(path.name), in_order, notes)


# == the trace of a run's x-ray: a file in its folder; a saved record has what was read from it ==


def xray_of(run: RunData) -> Breakdown | None:
    """Return the Breakdown of the x-ray of `run`; None where there is none that can be read."""
    path = Path(run.path) / XRAY_NAME
    return _of_file(path) if path.is_file() else breakdown_of(run.event(XRAY_EVENT) or {})


def xray_lines(run: RunData) -> list[str]:
    """Return the line for a saved record that keeps the x-ray of `run`, whose log has none."""
    found = None if run.event(XRAY_EVENT) else xray_of(run)
    event = {"event": XRAY_EVENT, "t_ns": 0}
    return [json.dumps(event | found.to_record(), allow_nan=False)] if found else []


@functools.lru_cache(maxsize=16)
def _of_file(path: Path) -> Breakdown | None:
    try:
        return _of_one(TraceFile(path))
    except TraceError:  # cut short by a full disk, say: the run's own numbers stand
        return None


def breakdown_of(stored: Event) -> Breakdown | None:
    """Rebuild what `to_record` returned, maybe by anybody: None unless all of it fits."""
    try:
        values = fields_in(Breakdown, stored)
        lanes = {name: np.array(spans, float) for name, spans in values.pop("lanes", {}).items()}
        found = Breakdown(**values, lanes=lanes)
        str(found)  # formats every number in it
        return found
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None
