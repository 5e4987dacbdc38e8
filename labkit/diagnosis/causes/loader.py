"""The loop waits for its loader; and what to set of a loader: workers, queue, whole batches."""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, LOSS, cause, found
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import Finding, Remedy
from labkit.knobs import Setting, as_typed
from labkit.spec import WITHOUT_WORKERS

FEWEST = 2  # workers to begin with
MOST_AT_FIRST = 4
SHARE_OUT = (
    " Each worker goes through the whole stream, and every item comes once from each, unless its "
    "__iter__ takes a share by torch.utils.data.get_worker_info()."
)

# -- what is known of a loader ---------------------------------------------------------------------


def has_cheap_items(evidence: Evidence) -> bool:
    """Return whether torch's taking the items one by one, and stacking them, is the work.

    That is a batch that the loop makes as fast as a worker sends one, and items of which torch's
    own code has MOST_OF_LOADING of the time. Without a batch size they are no more.
    """
    lines = evidence.known("lines")
    waits_us = evidence.known("wait_us") or 0.0
    cheap = not evidence.has_workers and 0 < waits_us < limits.HANDOFF_US
    if lines is not None:
        there = lines.frame[lines.mask("worker" if evidence.has_workers else "waiting")]
        torchs = there.of_phase[(there.within != "") & ~there.own].sum()
        is_torchs = len(there) >= limits.FEWEST_LINES and torchs >= limits.MOST_OF_LOADING
        cheap = cheap or is_torchs
    return cheap and evidence.knobs.get("batch_size", 1) is not None


def cores_full(evidence: Evidence) -> bool:
    """Return whether a run has no core for another worker that computes."""
    return (evidence.use.own or 0.0) >= limits.CORES_BUSY * (evidence.use.cores or math.inf)


def workers_to_try(evidence: Evidence) -> int | None:
    """Return how many workers to try; None where no other number may gain.

    A simulation tells of a bench's own pipeline. A loop that was only watched begins with some, and
    doubles them while they leave cores idle.
    """
    now, advised = evidence.known("num_workers"), evidence.known("advised")
    trace = evidence.known("trace")
    if advised is not None:
        return advised
    if now:
        return None if cores_full(evidence) else 2 * now
    if now is None and (trace is None or trace.known("has_workers")):
        return None
    return max(FEWEST, min(MOST_AT_FIRST, evidence.use.cores or FEWEST))


# -- what to set -----------------------------------------------------------------------------------

FETCH_AT_ONCE = Remedy(
    "fetch_at_once",
    "The items are cheap: taking them one by one, stacking them and sending them from a worker is "
    "most of the work. Fetch a batch at once: index the tensors with a batch of indices, without a "
    "DataLoader; where dataset[[0, 1]] works, a BatchSampler as the DataLoader's sampler does so.",
    "items",
    code="sampler = BatchSampler(RandomSampler(dataset), batch_size=32, drop_last=False)\n"
    "loader = DataLoader(dataset, sampler=sampler, batch_size=None)\n",
)
IN_THE_LOOP = Remedy(
    "batches_in_the_loop",
    "Make batches in the loop (num_workers=0): to send them from another process costs more than "
    "it saves.",
    "workers",
    {"num_workers": 0, **WITHOUT_WORKERS},
)
INTO_A_DATASET = Remedy(
    "into_a_dataset",
    "Prepare batches in a Dataset that a DataLoader with workers reads, or with more workers or "
    "threads of a loader's own.",
    "workers",
)
CHEAPER_ITEMS = Remedy(
    "cheaper_items", "Do less work per item, or do it once before training.", "workers"
)


def settings(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what to set of a loader, in the order in which it is tried; else cheaper items."""
    now, number = evidence.worker_count, workers_to_try(evidence)
    deeper = evidence.known("deeper_queue")
    is_cheap = has_cheap_items(evidence)
    remedies = [FETCH_AT_ONCE] if is_cheap else []
    if now and number == 0:
        remedies.append(IN_THE_LOOP)
    if deeper and evidence.stalls:
        text = f"Raise prefetch_factor to {deeper}: the queue does not ride out the stalls."
        remedies.append(Remedy("deeper_queue", text, "queue", {"prefetch_factor": deeper}))
    if number and number != now and not is_cheap:
        remedies.append(set_num_workers(number, evidence))
    elif evidence.known("num_workers") is None and evidence.known("trace") is None:
        remedies.append(INTO_A_DATASET)
    return tuple(remedies) or (CHEAPER_ITEMS,)


def set_num_workers(number: int, evidence: Evidence) -> Remedy:
    """Return the remedy of another number of workers; a watched loop keeps them between epochs."""
    changes: dict[str, Setting] = {"num_workers": number}
    if evidence.known("loop") is not None and not evidence.has_workers:
        changes["persistent_workers"] = True
    text = f"Prepare batches in other processes: {as_typed(changes)}."
    text += SHARE_OUT if evidence.code.streams else ""
    return Remedy("set_num_workers", text, "workers", changes)


# -- causes ----------------------------------------------------------------------------------------


@cause(LOSS)
def waiting_for_data(evidence: Evidence) -> Finding | None:
    """The loop waits for its next batch.

    Cause: the first that is found in `causes/workers.py`; else "stalls", where the worst tenth of
    the steps has more than STALLS of the waiting; else "waiting_for_data". It costs the share of
    the time that is spent waiting.
    """
    why = next(found(evidence, LATE), None)
    if why is None:
        name = "stalls" if evidence.stalls else "waiting_for_data"
        why = Finding("input", name, remedies=settings(evidence))
    wait = evidence.wait_share
    seen = f"{wait:.0%} of the time is spent waiting for the next batch ({evidence.source}). "
    if evidence.stalls:
        seen += f"{evidence.stall_share:.0%} of that falls into a tenth of the steps: stalls. "
        workers: WorkerEvidence | None = evidence.known("workers")
        if workers and workers.slowest:
            seen += f"The slowest items are {workers.slowest}. "
    lines = why.lines or evidence.loading_lines
    if lines and not why.lines:
        seen += f"Most of making a batch is in {lines[0].what}. "
    evidence_of_it = (seen + why.evidence).strip()
    return replace(why, lost_share=wait, evidence=evidence_of_it, lines=lines)
