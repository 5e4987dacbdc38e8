"""What a loader's workers showed: each number, and the words for what it is a number of."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import Measured
from labkit.diagnosis.hot_lines import Line
from labkit.results.loader_records import Hang
from labkit.results.text import counted

TIMED = "timed in the workers"


def cpu(workers: WorkerEvidence) -> Measured:
    """Return the CPU time of the workers over the time in which they prepare items."""
    each = "the worker" if workers.workers == 1 else f"each of {workers.workers} workers"
    seen = f"CPU in {each} while it prepares items"
    if (workers.in_line_share or 0.0) > limits.IN_LINE:
        seen += f", and {workers.in_line_share:.0%} in line for a core"
    return Measured(seen, workers.cpu_share, by=TIMED)


def on_cores(evidence: Evidence, workers: WorkerEvidence) -> Measured | None:
    """Return how many workers there are for how many cores."""
    cores = evidence.use.cores
    return (
        None
        if cores is None
        else Measured(f"{counted(workers.workers, 'worker')} on {counted(cores, 'core')}")
    )


def took(what: str, took_ms: float | None) -> Measured | None:
    """Return how long something took; None where that was not measured."""
    return None if took_ms is None else Measured(what, took_ms, "ms")


def costliest_step(lines: tuple[Line, ...]) -> tuple[Measured, ...]:
    """Return the first of the lines that prepare an item, the costliest step of it."""
    return tuple(
        Measured(f"of the workers' time is in {line.what}", line.share) for line in lines[:1]
    )


def no_progress(hang: Hang) -> Measured:
    """Return for how long a worker finished nothing."""
    item = "" if hang.index is None else f", at item {hang.index}"
    seen = f"since worker {hang.worker} last made progress{item}"
    return Measured(seen, hang.seconds, "s", TIMED)
