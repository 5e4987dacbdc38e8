"""The loop waits for its loader; and what to set of a loader: workers, queue, whole batches."""

from __future__ import annotations

import math
from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LATE, cause, found
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import LESS_WAITING, Finding, Measured, Remedy, explains
from labkit.knobs import Setting, as_typed
from labkit.prediction.prediction import LEAST_MAX_WORKERS
from labkit.spec import PYTORCH_PREFETCH, WITHOUT_WORKERS

FEWEST = 2  # workers to begin with
MOST_AT_FIRST = 4
DEEPEST = 16  # a deeper queue than this takes memory and hides what is wrong
SHARE_OUT = (
    " Each worker goes through the whole stream, and every item comes once from each, unless its "
    "__iter__ takes a share by torch.utils.data.get_worker_info()."
)

# -- what is known of a loader ---------------------------------------------------------------------


def torchs_share(evidence: Evidence) -> float:
    """Return the part of making batches that is torch's own; 0 where too little was sampled."""
    lines = evidence.known("lines")
    phase = "worker" if evidence.has_workers else "waiting"
    if lines is None or lines.mask(phase).sum() < limits.FEWEST_LINES:
        return 0.0
    torchs = lines.frame[lines.mask(phase) & (lines.frame.within != "") & ~lines.frame.own]
    return torchs.of_phase.sum()


def has_cheap_items(evidence: Evidence) -> bool:
    """Return whether torch's taking the items one by one, and stacking them, is the work.

    That is a TensorDataset, a batch that the loop makes as fast as a worker sends one, and items of
    which torch's own code has MOST_OF_LOADING of the time. Without a batch size they are no more.
    """
    code = evidence.code
    is_plain = not {"collate_fn", "batch_sampler"} & code.arguments.keys()
    cheap = code.dataset_type == "TensorDataset" and is_plain
    cheap = cheap or torchs_share(evidence) >= limits.MOST_OF_LOADING
    if not evidence.has_workers:
        cheap = cheap or 0 < (evidence.known("wait_us") or 0.0) < limits.HANDOFF_US
    return cheap and evidence.knobs.get("batch_size", 1) is not None


def cores_full(evidence: Evidence) -> bool:
    """Return whether a run has no core for another worker that computes."""
    return (evidence.use.own or 0.0) >= limits.CORES_BUSY * (evidence.use.cores or math.inf)


def workers_to_try(evidence: Evidence) -> int | None:
    """Return how many workers to try; None where no other number may gain.

    A simulation tells of a bench's own pipeline. A loop that was only watched begins with some, and
    doubles them while they leave cores idle.
    """
    now = evidence.known("num_workers")
    cores = evidence.use.cores or FEWEST
    trace = evidence.known("trace")
    if evidence.known("advised") is not None:
        return evidence.advised
    if now:
        most = max(LEAST_MAX_WORKERS, 2 * cores)
        return None if cores_full(evidence) or 2 * now > most else 2 * now
    if now is None and (trace is None or trace.known("has_workers")):
        return None
    return max(FEWEST, min(MOST_AT_FIRST, cores))


# -- what to set -----------------------------------------------------------------------------------

FETCH_AT_ONCE = Remedy(
    "fetch_at_once",
    "The items are cheap: taking them one by one, stacking them and sending them from a worker is "
    "most of the work. Fetch a batch at once: index the tensors with a batch of indices, without a "
    "DataLoader; where dataset[[0, 1]] works, a BatchSampler as the DataLoader's sampler does so.",
    "items",
    code="sampler = BatchSampler(RandomSampler(dataset), batch_size=32, drop_last=False)\n"
    "loader = DataLoader(dataset, sampler=sampler, batch_size=None)\n",
    check=LESS_WAITING,
)
IN_THE_LOOP = Remedy(
    "batches_in_the_loop",
    "Make batches in the loop (num_workers=0): to send them from another process costs more than "
    "it saves.",
    "workers",
    {"num_workers": 0, **WITHOUT_WORKERS},
    cost="the loop waits while it makes a batch",
)
SOME_WORKERS = Remedy(
    "some_workers",
    "Prepare batches in other processes: a DataLoader with workers, or more workers or threads of "
    "a loader's own.",
    "workers",
)
CHEAPER_ITEMS = Remedy(
    "cheaper_items",
    "Do less work per item, or do it once before training.",
    "workers",
    check=LESS_WAITING,
)


def settings(evidence: Evidence) -> tuple[Remedy, ...]:
    """Return what to set of a loader, in the order in which it is tried; else cheaper items.

    No forked worker could make batches on a GPU.
    """
    now, number = evidence.worker_count, workers_to_try(evidence)
    is_cheap = has_cheap_items(evidence)
    remedies = [FETCH_AT_ONCE] if is_cheap else []
    if now and number == 0:
        remedies.append(IN_THE_LOOP)
    if now and evidence.stalls:
        ready = int(evidence.knobs.get("prefetch_factor") or PYTORCH_PREFETCH)
        deeper = 4 * ready if evidence.known("advised") is None else evidence.known("deeper_queue")
        if deeper and deeper <= DEEPEST:
            remedies.append(deeper_queue(deeper))
    if number and number != now and not is_cheap and not evidence.batch.on_gpu:
        remedies.append(set_num_workers(number, evidence))
    elif evidence.known("num_workers") is None and evidence.known("trace") is None:
        remedies.append(SOME_WORKERS)
    return tuple(remedies) or (CHEAPER_ITEMS,)


def deeper_queue(batches: int) -> Remedy:
    """Return the remedy for workers that are fast enough on average, and not in the worst steps."""
    return Remedy(
        "deeper_queue",
        f"Raise prefetch_factor to {batches}: the queue does not ride out the stalls.",
        "queue",
        {"prefetch_factor": batches},
        cost="memory for the batches kept ready",
        check=LESS_WAITING,
    )


def set_num_workers(number: int, evidence: Evidence) -> Remedy:
    """Return the remedy of another number of workers; a watched loop keeps them between epochs."""
    changes: dict[str, Setting] = {"num_workers": number}
    if evidence.known("loop") is not None and not evidence.has_workers:
        changes["persistent_workers"] = True
    return Remedy(
        "set_num_workers",
        f"Prepare batches in other processes: {as_typed(changes)}."
        + (SHARE_OUT if evidence.code.streams else ""),
        "workers",
        changes,
        cost="a process with its memory for each worker, and their start",
        check=LESS_WAITING,
    )


# -- causes ----------------------------------------------------------------------------------------


explains("slow-items", "stalls")


@cause("too-few-workers", "waiting_for_data")
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
    seen = "of the time is spent waiting for the next batch"
    waits = [Measured(seen, evidence.wait_share, by=evidence.source)]
    if evidence.stalls:
        worst = "of that falls into a tenth of the steps: stalls"
        waits.append(Measured(worst, evidence.stall_share))
        workers: WorkerEvidence | None = evidence.known("workers")
        if workers and workers.slowest:
            waits.append(Measured(f"the slowest items are {workers.slowest}"))
    lines = why.lines or evidence.loading_lines
    if lines and not why.lines:
        waits.append(Measured(f"most of making a batch is in {lines[0].what}"))
    measured = (*waits, *why.measured)
    return replace(why, lost_share=evidence.wait_share, measured=measured, lines=lines)
