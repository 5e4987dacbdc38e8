"""What a loader's workers showed: each number, and the words for what it is a number of."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import Measured
from labkit.diagnosis.hot_lines import SlowCode
from labkit.results.loader_records import Hang
from labkit.results.text import counted

TIMED = "timed in the workers"
WHOSE = {"worker": "of the workers' time", "waiting": "of the waiting"}  # by phase of a line
WORTH_A_WORD = 0.15  # of its process's time: a line with less is not named beside the costliest


def cpu(workers: WorkerEvidence) -> Measured:
    """Return the CPU time of the workers over the time in which they prepare items."""
    each = "the worker" if workers.workers == 1 else f"each of {workers.workers} workers"
    seen = f"CPU in {each} while it prepares items"
    if (workers.in_line_share or 0.0) > limits.IN_LINE:
        seen += f", and {workers.in_line_share:.0%} waiting for a free core"
    return Measured(seen, workers.cpu_share, by=TIMED)


def on_cores(evidence: Evidence, workers: WorkerEvidence) -> Measured | None:
    """Return how many workers there are for how many cores."""
    cores = evidence.use.cores
    return (
        None
        if cores is None
        else Measured(f"{counted(workers.workers, 'worker')} on {counted(cores, 'core')}")
    )


def slow_code(code: SlowCode, workers: int) -> tuple[Measured, ...]:
    """Return what slow code takes of its process's time, line by line, and where it runs."""
    where = WHOSE[code.phase]
    if code.phase == "waiting":
        where += ", in the loop's own process"
        where += f" while its {counted(workers, 'worker')} can do nothing," if workers else ","
    first, *others = zip(code.lines, code.shares, strict=True)
    also = [Measured(f"in {line.what}", part) for line, part in others if part >= WORTH_A_WORD]
    return Measured(f"{where} is {first[0].what}", first[1]), *also


def costliest_lines(evidence: Evidence) -> tuple[Measured, ...]:
    """Return the line with the largest part of making batches in each process, if it has much."""
    found = []
    for phase, whose in WHOSE.items():
        lines = evidence.lines.rows(evidence.lines.making(phase)) if evidence.lines else ()
        whole = 1.0 if phase == "worker" else evidence.wait_share
        if lines and lines[0].share >= WORTH_A_WORD * whole > 0:
            part = min(lines[0].share / whole, 1.0)
            found.append(Measured(f"{whose} is {lines[0].what}", part))
    return tuple(found)


def no_progress(hang: Hang) -> Measured:
    """Return for how long a worker finished nothing."""
    item = "" if hang.index is None else f", at item {hang.index}"
    seen = f"since worker {hang.worker} last made progress{item}"
    return Measured(seen, hang.seconds, "s", TIMED)
