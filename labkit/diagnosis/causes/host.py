"""The host does something else between the steps."""

from __future__ import annotations

import re

from labkit.diagnosis.cause import cause
from labkit.diagnosis.causes.launches import FEWER_LAUNCHES
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import LESS_WAITING, Finding, Measured, Remedy, explains

# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)

OUT_OF_THE_LOOP = Remedy(
    "out_of_the_loop",
    "Take logging, checkpoints, evaluation and .item() out of the loop, or do them rarely; where "
    "there is none, launch fewer and larger kernels.",
    "launches",
)


explains("launches", "issuing_work")


@cause("loop-body", "host_work_in_the_loop")
def host_work(evidence: Evidence) -> Finding:
    """The host does something else, or issues work, while the device waits.

    Cause "host_work_in_the_loop", of a trace "issuing_work". It costs the share of the time in
    which the device waits for neither data nor a copy.
    """
    lost = evidence.other_share + evidence.launch_share
    if evidence.known("trace") is None:
        seen = "of the time the device waits while the host does something but data and copies"
        measured = (Measured(seen, lost, by=evidence.source),)
        return Finding("launch", "host_work_in_the_loop", lost, measured, (OUT_OF_THE_LOOP,))
    seen = (
        "of the time the device waits while the host issues work: in operators, in calls of the "
        "runtime, in Python between them"
    )
    measured = (Measured(seen, lost, by=evidence.source),)
    return Finding("launch", "issuing_work", lost, measured, FEWER_LAUNCHES)


IN_ANOTHER_PROCESS = Remedy(
    "in_another_process",
    "Take it out of the loop, or do it rarely or in another process: logging, checkpoints, "
    "evaluation, preparing data; with_stack=True records where it is.",
    "lines",
)
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Do it in a Dataset, and read that with a DataLoader that has workers.",
    "workers",
    check=LESS_WAITING,
)


explains("too-few-workers", "data_prepared_outside_a_DataLoader")


@cause("loop-body", "host_work")
def outside_pytorch(evidence: Evidence) -> Finding | None:
    """The host does what the profiler knows nothing of, while the device waits (a trace).

    Cause "data_prepared_outside_a_DataLoader", where a function's name says so (`PREPARES`); else
    "host_work". It costs the share of the time spent so.
    """
    lost = evidence.outside_share
    names = ", ".join(evidence.trace.outside_where)
    if not lost:
        return None
    seen = "of the time the device waits for host work outside of PyTorch"
    seen += f", most of it in {names}" if names else ""
    measured = (Measured(seen, lost, by=evidence.source),)
    if PREPARES.search(names):
        name = "data_prepared_outside_a_DataLoader"
        return Finding("input", name, lost, measured, (INTO_A_DATASET,))
    return Finding("host", "host_work", lost, measured, (IN_ANOTHER_PROCESS,))
