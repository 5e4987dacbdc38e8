"""The trace of a run's x-ray, read by the same reader as any other profiler trace.

The trace lies in the run's folder. A saved record carries what was read from it instead.
"""

from __future__ import annotations

import functools
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from labkit.analysis.trace import TraceError, trace
from labkit.analysis.trace_breakdown import Breakdown, TopKernel

FILE_NAME = "xray.json.gz"  # written by labkit.bench.profile into the run's folder
EVENT = "xray_trace"  # what a saved record has instead


def read(run: Any) -> Breakdown | None:
    """Return the Breakdown of the x-ray of `run`; None where there is none that can be read."""
    path = Path(run.path)
    if path.is_dir() and (path / FILE_NAME).is_file():
        return _of_file(path / FILE_NAME)
    return _of_event(run.event(EVENT))


def to_event(run: Any) -> str | None:
    """Return the line that keeps the x-ray of `run` in a saved record; None where it has none."""
    found = read(run)
    if found is None:
        return None
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    values["top_kernels"] = [vars(kernel) for kernel in found.top_kernels]
    return json.dumps({"event": EVENT, "t_ns": 0, **values}, allow_nan=False)


@functools.lru_cache(maxsize=16)
def _of_file(path: Path) -> Breakdown | None:
    try:
        return trace(path)
    except TraceError:  # cut short by a full disk, say: the run's own numbers stand
        return None


def _of_event(event: dict[str, Any] | None) -> Breakdown | None:
    """Rebuild a Breakdown from a record, which may be anybody's: None unless all of it fits."""
    if not event:
        return None
    try:
        values = {field.name: event[field.name] for field in fields(Breakdown)}
        values["top_kernels"] = tuple(TopKernel(**kernel) for kernel in values["top_kernels"])
        values["ranks"], values["notes"] = tuple(values["ranks"]), tuple(values["notes"])
        found = Breakdown(**values)
        str(found)  # formats every number in it
        return found
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None
