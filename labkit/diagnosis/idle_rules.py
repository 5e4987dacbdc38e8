"""Rules for a device that has nothing to compute: it waits for data, a copy, the host, a rank."""

from __future__ import annotations

import re
from dataclasses import replace

from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import worker_remedies
from labkit.diagnosis.body_remedies import IN_ANOTHER_PROCESS, NOW_AND_THEN, OUT_OF_THE_LOOP
from labkit.diagnosis.copy_remedies import NON_BLOCKING, ONE_BLOCK, OVERLAPPED, PINNED
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import ISSUING, Finding, Measured, bound, costs
from labkit.diagnosis.worker_rules import why_batches_are_late
from labkit.diagnosis.worker_state import crowding_threads, what_workers_show
from labkit.diagnosis.worker_words import costliest_lines

# What prepares data, by the name of a Python function, its file or an annotation
PREPARES = re.compile(
    r"(?i)preprocess|(?:image|video|audio|data)_process|dataset|data_?loader|collate|tokeniz"
    r"|transforms|augment|feature_ext|decode_(?:image|jpeg|video)|imread|read_(?:image|video)"
    r"|(?:load|get|next|fetch|read|prepare|make|wait_for)_?\w*(?:batch|data)"
)


def waiting_for_data(evidence: Evidence) -> Finding | None:
    """The loop waits for its next batch.

    Cause: what the workers' own state shows (`worker_state.STATE_RULES`), or what they did and the
    lines that make batches (`worker_rules`); else "stalls", where the worst tenth of the steps has
    more than STALLS of the waiting; else "waiting_for_data". The costliest line is named with each.
    It costs the share of the time that is spent waiting.
    """
    found = what_workers_show(evidence) or why_batches_are_late(evidence)
    if found is None:
        cause = "stalls" if evidence.stalls else "waiting_for_data"
        found = Finding("input", cause, remedies=feeding.FEED)
    lines = found.lines or evidence.loading_lines
    also = () if found.lines else costliest_lines(evidence)
    waits = [
        Measured(
            "of the time is spent waiting for the next batch",
            evidence.wait_share,
            by=evidence.source,
        )
    ]
    if evidence.stalls:
        worst = "of that falls into a tenth of the steps: stalls"
        waits.append(Measured(worst, evidence.stall_share))
    if evidence.headroom is not None:
        seen = ("the throughput", evidence.headroom, "times", "replayed batches")
        waits.append(Measured(*seen, "a perfect loader would give"))
    measured = (*waits, *found.measured, *also)
    return replace(found, lost_share=evidence.wait_share, measured=measured, lines=lines)


def cores_taken_by_workers(evidence: Evidence) -> Finding | None:
    """Loader workers compute on the cores that a model on the CPU needs.

    Cause "workers_take_the_device's_cores". It costs the share of the time in which the model's
    thread had no core since a worker had it.
    """
    if evidence.stolen_by_workers is None:
        return None
    count = evidence.num_workers or 0
    fewer = evidence.advised is not None and evidence.advised < count
    seen = (
        "of the time a loader worker had the core that the model's thread needed, with "
        f"{count} workers on {evidence.use.cores} cores"
    )
    by = "thread CPU time against wall time"
    if evidence.loop is not None:
        quick_ms = (evidence.quick_compute_us or 0.0) / 1e3
        mean_ms = (evidence.compute_us or 0.0) / 1e3
        by = f"the quickest steps compute for {quick_ms:.1f} ms, the average one for {mean_ms:.1f}"
    threads = crowding_threads(evidence)
    measured = costliest_lines(evidence) if threads is None else threads.measured
    remedies = feeding.FEED if fewer else (feeding.CHEAPER_ITEMS,)
    return Finding(
        "input",
        "workers_take_the_device's_cores",
        evidence.stolen_by_workers,
        (Measured(seen, evidence.stolen_by_workers, by=by), *measured),
        remedies if threads is None else threads.remedies,
        evidence.loading_lines if threads is None else (),
    )


def copies(evidence: Evidence) -> Finding | None:
    """The device waits for a copy from the host.

    Cause "copies". It costs the share of the time spent so.
    """
    lost = evidence.copy_share
    seen = "of the time the device waits for a copy"
    remedies = (ONE_BLOCK, PINNED, OVERLAPPED, NON_BLOCKING)
    found = costs("transfer", "copies", lost, seen, evidence.source, *remedies)
    return replace(found, at_most=bound(lost))


def host_work(evidence: Evidence) -> Finding | None:
    """The host does something else, or issues work, while the device waits.

    Cause "host_work_in_the_loop", of a trace "issuing_work". It costs the share of the time in
    which the device waits for neither data nor a copy.
    """
    lost = evidence.other_share + evidence.launch_share
    cause = "host_work_in_the_loop"
    seen = "of the time the device waits while the host does something other than data and copies"
    remedies = (OUT_OF_THE_LOOP,)
    if evidence.trace:
        cause = ISSUING
        seen = (
            "of the time the device waits while the host issues work: in operators, in calls "
            "of the runtime, in Python between them"
        )
        remedies = cures.FEWER_LAUNCHES
    return costs("launch", cause, lost, seen, evidence.source, *remedies)


def pauses(evidence: Evidence) -> Finding | None:
    """Single steps compute far longer than an ordinary one.

    Cause "pauses_inside_steps", where no sampled stacks tell what long steps do, of a device that
    was timed. It costs what
    steps of more than PAUSE ordinary ones take beyond an ordinary one with a batch of their size,
    and no more than the time for which a watched loop's device may have rested.
    """
    if evidence.body or evidence.launches_only:
        return None  # samples tell what long steps do; a host waits for all that it has queued
    seen = "of the time is lost to single steps that compute far longer than an ordinary one"
    lost = evidence.pause_share
    if evidence.loop is not None:
        lost = min(lost, max(1 - evidence.card.certain_share, 0.0))
    cause = "pauses_inside_steps"
    return costs("launch", cause, lost, seen, evidence.source, NOW_AND_THEN)


def outside_pytorch(evidence: Evidence) -> Finding | None:
    """The host does what the profiler knows nothing of, while the device waits (a trace).

    Cause "data_prepared_outside_a_DataLoader", where a function's name says so (`PREPARES`); else
    "host_work". It costs the share of the time spent so.
    """
    lost = evidence.outside_share
    if not lost or evidence.trace is None:
        return None
    names = ", ".join(evidence.trace.outside_where)
    seen = "of the time the device waits for host work outside of PyTorch"
    seen += f", most of it in {names}" if names else ""
    by = evidence.source
    if PREPARES.search(names):
        cause = "data_prepared_outside_a_DataLoader"
        return costs("input", cause, lost, seen, by, worker_remedies.INTO_A_DATASET)
    return costs("host", "host_work", lost, seen, by, IN_ANOTHER_PROCESS)


def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace).

    Cause "exposed_collectives". It costs the share of the time in which nothing else runs.
    """
    lost = evidence.communication_share
    trace = evidence.trace
    if not lost or trace is None:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    measured = [Measured(seen, lost, by=evidence.source)]
    if trace.late_rank is not None:
        measured.append(Measured(trace.late_said))
    return Finding(
        "communication",
        "exposed_collectives",
        lost,
        tuple(measured),
        (cures.OVERLAP_EXCHANGE if trace.late_rank is None else cures.LATE_TRACE,),
        rank=trace.late_rank,
    )
