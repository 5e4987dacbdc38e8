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
from labkit.traces.breakdown import GRAPHS, Breakdown, TopKernel
from labkit.traces.file import (
    ONE_PER_RANK,
    NotATrace,
    TraceError,
    TraceFile,
    files_in,
    holds_several,
)
from labkit.traces.ranks import RankTraces

XRAY_EVENT = "xray_trace"  # what a saved record has instead
RANK_IN_NAME = re.compile(r"(?i)(?:rank|worker)[-_. ]?(\d{1,7})")


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
    # Imports pandas, which a run without an x-ray needs not
    from labkit.traces.one_rank import break_down

    return break_down(file)


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
        if one.rank is None and named:
            one = replace(one, rank=int(named[-1]))
        found.append(one)
    if not found:
        raise TraceFile(path).error("holds no profiler trace", ONE_PER_RANK)
    found.sort(key=lambda one: one.source)
    if any(one.rank is None for one in found):
        notes.append("Not every file says its rank: they are numbered in the order of their names.")
        found = [replace(one, rank=number) for number, one in enumerate(found)]
    ranks = {one.rank or 0: one for one in found}
    if len(ranks) < len(found):
        notes.append("Some ranks have several traces: the last by name was read.")
    return RankTraces(
        one_line(path.name), tuple(ranks[rank] for rank in sorted(ranks)), tuple(notes)
    )


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
