"""Why the loop waits for data, by what its loader's workers did.

Each rule looks for one cause in the `WorkerEvidence`; the first of `WORKER_RULES` that finds its
own speaks. It costs the loop's waiting for data, which `idle_rules.waiting_for_data` fills in.
"""

from __future__ import annotations

from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import worker_remedies as cures
from labkit.diagnosis import worker_words as words
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import Finding, Measured, late_batches
from labkit.diagnosis.line_work import COLLATE


def _computing(evidence: Evidence, workers: WorkerEvidence) -> float:
    """Return the share of its time in which a worker computes, or would if it had a core.

    Time in line for a core is no waiting for storage.
    """
    share = workers.cpu_share
    if workers.in_line_share is not None:
        return max(share, min(1.0, share + workers.in_line_share))
    if not evidence.is_crowded:
        return share
    in_line = (evidence.use.in_line or 0.0) / workers.workers
    return max(share, min(1.0, share + in_line))


def worker_hangs(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """A worker that has an item to make made no progress to the end of the record.

    Cause "hang", where that lasted HANGS_S or longer.
    """
    hang = workers.hang
    if hang is None or hang.seconds < limits.HANGS_S:
        return None
    measured = (words.no_progress(hang), *words.costliest_step(evidence.loading_lines))
    return late_batches("hang", *measured, remedies=(cures.GIVE_UP_WAITING,))


def uneven_shards(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """One worker has most of the work: its share bounds the gain.

    Cause "uneven_shards", where the busiest worked for UNEVEN times the mean.
    """
    uneven = workers.busiest_over_mean
    if uneven is None or uneven < limits.UNEVEN:
        return None
    fed = 1 / max(1 - evidence.wait_share, 0.01)  # the device alone would allow no more
    return Finding(
        "input",
        "uneven_shards",
        measured=(
            Measured("the mean", uneven, "times", words.TIMED, "the busiest worker's work is"),
        ),
        remedies=(cures.EVEN_SHARDS,),
        at_most=min(uneven, fed),
    )


def hand_over(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers rest while the loop waits: batches are late on their way.

    Cause "hand_over", where the average worker had no batch to make for WORKERS_REST of the time,
    and no other program took the loop's core.
    """
    if workers.idle_share is None or workers.idle_share < limits.WORKERS_REST:
        return None
    if evidence.is_crowded:  # the loop had no core to take a batch on
        return None
    rest = "of the time the workers have nothing to do while the loop waits"
    return late_batches(
        "hand_over",
        Measured(rest, workers.idle_share, by=words.TIMED),
        words.took("to hand a batch over", workers.hand_over_ms),
        remedies=(cures.UINT8_BATCHES,),
    )


def cores(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers compute all the time, and there is no core for another one.

    Cause "cores", where there are as many workers as cores and each computes for COMPUTES of its
    time; MOSTLY_WAITS is enough where together they want COMPUTES of the cores, or the run used
    CORES_BUSY of them.
    """
    use = evidence.use
    if use.cores is None or workers.workers < use.cores:
        return None
    full = workers.wanted_cores >= limits.COMPUTES * use.cores
    full = full or (use.own or 0.0) >= limits.CORES_BUSY * use.cores
    computing = _computing(evidence, workers)
    if computing < limits.MOSTLY_WAITS or (computing < limits.COMPUTES and not full):
        return None
    remedies = (
        feeding.WHOLE_TENSORS,
        feeding.DECODE_SMALLER,
        feeding.AUGMENT_ON_DEVICE,
        feeding.LEANER_ITEMS,
    )
    measured = (
        words.cpu(workers),
        words.on_cores(evidence, workers),
        *words.costliest_step(evidence.computing_lines),
    )
    return late_batches("cores", *measured, remedies=remedies)


def too_few_workers(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers compute all the time, and there are cores for more of them.

    Cause "too_few_workers", where each computes for COMPUTES of its time, the waiting does not come
    in stalls, and no simulation advises against more.
    """
    advised = evidence.advised
    more = advised is None or advised > workers.workers
    if _computing(evidence, workers) < limits.COMPUTES or evidence.stalls or not more:
        return None
    remedies = (feeding.WHOLE_TENSORS, feeding.WORKERS, feeding.CHEAPER_ITEMS)
    measured = (words.cpu(workers), words.on_cores(evidence, workers))
    return late_batches("too_few_workers", *measured, remedies=remedies)


def storage_latency(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers wait for storage or a network, each for itself.

    Cause "storage_latency", where they compute for less than MOSTLY_WAITS of their time, the
    waiting does not come in stalls, and it is not the collate function that waits.
    """
    if _computing(evidence, workers) >= limits.MOSTLY_WAITS or evidence.stalls:
        return None
    loading = evidence.loop.loading if evidence.loop else None
    if loading is not None and loading.cause == COLLATE:
        return None  # it is the collate function that waits
    measured = (
        words.cpu(workers),
        words.took("of waiting for each item", workers.item_wait_ms),
    )
    remedies = (feeding.WORKERS, cures.LARGER_READS)
    lines = loading.lines if loading is not None else ()
    return late_batches("storage_latency", *measured, remedies=remedies, lines=lines)


WORKER_RULES = (
    worker_hangs,
    uneven_shards,
    hand_over,
    cores,
    too_few_workers,
    storage_latency,
)


def why_workers_are_late(evidence: Evidence) -> Finding | None:
    """Return the cause that the workers show; None where they were not seen, or show none."""
    workers = evidence.workers
    if workers is None:
        return None
    found = (rule(evidence, workers) for rule in WORKER_RULES)
    return next(filter(None, found), None)


def memory_growth(evidence: Evidence) -> Finding | None:
    """The workers hold more and more memory: said whatever time it costs.

    Cause "memory_growth", where they gained WORKERS_GREW_GIB or more.
    """
    memory = evidence.workers.memory if evidence.workers else None
    if memory is None or memory.gained < limits.WORKERS_GREW_GIB:
        return None
    more = "more than at their first batch"
    measured = [Measured(more, memory.gained, "GiB", before="the workers hold")]
    remedies = (cures.KEEP_NO_ITEMS, cures.ARRAYS)
    if memory.copied >= memory.gained / 2:
        shared = "of it had been shared with the main process until a worker touched it"
        measured.append(Measured(shared, memory.copied, "GiB"))
        remedies = (cures.ARRAYS,)
    return Finding("host", "memory_growth", measured=tuple(measured), remedies=remedies)
