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
from labkit.results.text import counted


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
    if hang is None or hang.over or hang.seconds < limits.HANGS_S:
        return None
    measured = (words.no_progress(hang), *words.costliest_step(evidence.loading_lines))
    return late_batches("hang", *measured, remedies=(cures.GIVE_UP_WAITING,))


def hang_that_ended(evidence: Evidence) -> Finding | None:
    """A worker made no progress for long, and then the loop went on: worth a word, no more.

    Cause "hang_that_ended".
    """
    hang = evidence.workers.hang if evidence.workers else None
    if hang is None or not hang.over:
        return None
    return late_batches(
        "hang_that_ended", words.no_progress(hang), remedies=(cures.GIVE_UP_WAITING,)
    )


def workers_restart(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The first batch of every epoch waits for workers that start anew.

    Cause "workers_restart", where these first batches make up half of the waiting. More workers
    than CROWD for a core are said beside it: each of them starts on one.
    """
    share = workers.epoch_start_share or 0.0
    if share < evidence.wait_share / 2 or not share:
        return None
    starts = Measured("of the time is the start of later epochs", share, by=words.TIMED)
    what = "to an epoch's first batch"
    cores = evidence.use.cores
    if cores and workers.workers > limits.CROWD * cores:
        what += f", for which {workers.workers} workers start on {counted(cores, 'core')}"
    each = words.took(what, workers.epoch_start_ms)
    return late_batches(
        "workers_restart", starts, each, remedies=(cures.PERSISTENT, cures.LONGER_PASSES)
    )


def cold_start(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The first epoch is slower than the later ones: the page cache was cold.

    Cause "cold_start", where a batch of it took COLD times one of the later epochs; in a watched
    loop, where half of the waiting was in it as well.
    """
    ratio = workers.first_epoch_ratio
    loop = evidence.loop
    if ratio is None or ratio < limits.COLD:
        return None
    if loop and loop.cold < evidence.wait_share / 2:  # it was slow, and most waiting came later
        return None
    return late_batches(
        "cold_start",
        Measured(
            "as long as those of later epochs",
            ratio,
            "times",
            words.TIMED,
            "items of the first epoch take",
        ),
        remedies=(cures.READ_ONCE,),
    )


def slow_items(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """A few items take far longer than the others, and the next batch in order waits for them.

    Cause "slow_items", where the slowest took SLOW_ITEM times the mean, and a later batch was ready
    for HELD_UP of the waiting; where that was not measured, the slowest hundredth of the batches
    took SLOW_BATCH times the median one.
    """
    ratio = workers.slowest_ratio
    if ratio is None or ratio < limits.SLOW_ITEM:
        return None
    late = workers.late_share
    if late is not None and late < limits.HELD_UP:
        return None  # no batch had to wait for them
    if late is None and (workers.slow_batch_ratio or 0.0) < limits.SLOW_BATCH:
        return None  # too few of them to hold a batch up now and then
    behind = None
    if late is not None:
        behind = Measured("of the waiting a later batch was ready already", late)
    elif workers.idle_share is not None:
        seen = "of the time the other workers have nothing to do"
        behind = Measured(seen, workers.idle_share)
    remedies = (cures.OUT_OF_ORDER, cures.SLOW_ITEMS_OFFLINE)
    return late_batches("slow_items", words.slowest(workers), behind, remedies=remedies)


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
        remedies=(cures.DEAL_FILES_OUT, cures.RESHARD),
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


def threads(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """Libraries in the workers compute with several threads each.

    Cause "threads", where a worker uses SEVERAL_THREADS cores; or where more threads stand in line
    for a core than there would be with one a worker, and no other program makes them.
    """
    # Where the cores are full, they stand in line: more of them than processes of one thread
    single = workers.workers + (evidence.threads or 1)
    in_line = evidence.use.in_line or 0.0
    stand_in_line = in_line > single and not evidence.is_crowded  # others make every thread do so
    if workers.cpu_share < limits.SEVERAL_THREADS and not stand_in_line:
        return None
    measured = (
        words.cpu(workers),
        words.in_line(in_line, single) if stand_in_line else None,
        *words.costliest_step(evidence.computing_lines),
    )
    remedies = (cures.ONE_THREAD, cures.ONE_THREAD_EVERYWHERE)
    return late_batches("threads", *measured, remedies=remedies)


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
        cures.FEWER_THREADS,
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


def shared_supply(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers wait, and the longer the more of them there are.

    Cause "shared_supply", where an item waits SHARED times as long as with one worker, and the
    workers compute for less than MOSTLY_WAITS of their time.
    """
    slower = workers.wait_over_alone
    if slower is None or slower < limits.SHARED:
        return None
    if _computing(evidence, workers) >= limits.MOSTLY_WAITS:
        return None
    alone = "as long as with a single worker"
    return late_batches(
        "shared_supply",
        words.cpu(workers),
        Measured(alone, slower, "times", words.TIMED, "each item waits"),
        remedies=(cures.FEWER_BYTES,),
    )


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
    workers_restart,
    cold_start,
    slow_items,
    uneven_shards,
    hand_over,
    threads,
    cores,
    too_few_workers,
    shared_supply,
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
