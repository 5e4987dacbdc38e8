"""Why is the device idle, and what do I change: `diagnose` of whatever can be diagnosed."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.diagnosis.run_verdict import of_run
from labkit.diagnosis.trace_verdict import of_published, of_traced
from labkit.diagnosis.verdict import Diagnosis
from labkit.process.events import FILE_NAME
from labkit.results.library import Loaded, load
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import RecordError
from labkit.traces.public import PublicTrace
from labkit.traces.read import Breakdown, RankTraces, trace


def diagnose(
    what: Loaded | Breakdown | RankTraces | PublicTrace | str | os.PathLike[str],
) -> Diagnosis:
    """Name the bottleneck of a Run, Ranks, a record's path (.jsonl, .jsonl.gz or a run's folder).

    Or of a torch.profiler trace (.json, .json.gz), a folder or archive of one for each rank, or
    what `lk.trace` or `lk.public_trace` made of them. Raises RecordError or TraceError (both are a
    ValueError) on one that cannot be used.
    """
    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        is_record = path.name.endswith((".jsonl", ".jsonl.gz")) or (path / FILE_NAME).exists()
        return diagnose(load(path) if is_record else trace(path))
    if isinstance(what, (Breakdown, RankTraces)):
        return of_traced(what)
    if isinstance(what, PublicTrace):
        return of_published(what)
    if isinstance(what, Ranks):
        return what.diagnose()
    if isinstance(what, Measurements):
        raise RecordError(
            f"{what.path}: a measured function has rows and no training steps, so there "
            "is nothing to diagnose: lk.load(path) shows its numbers; diagnose a training run."
        )
    return of_run(what)
