"""Why the loop waits for data: what its loader's workers did, and the lines that make batches.

Each rule looks for one cause; the first of `WORKER_RULES` that finds its own speaks (of
`LOADER_RULES` for a loader without workers). It costs the loop's waiting for data, which
`idle_rules.waiting_for_data` fills in.
"""

from __future__ import annotations

import math

from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import worker_remedies as cures
from labkit.diagnosis import worker_words as words
from labkit.diagnosis.evidence import Evidence, WorkerEvidence
from labkit.diagnosis.findings import Finding, Measured, gain_without, late_batches
from labkit.diagnosis.hot_lines import COLLATE
from labkit.diagnosis.known_calls import known_call
from labkit.results.text import counted


def worker_hangs(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """A worker that has an item to make made no progress to the end of the record.

    Cause "hang", where that lasted HANGS_S or longer.
    """
    hang = workers.hang
    if hang is None or hang.over or hang.seconds < limits.HANGS_S:
        return None
    return late_batches("hang", words.no_progress(hang), remedies=(cures.GIVE_UP_WAITING,))


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


def cold_start(evidence: Evidence, workers: WorkerEvidence | None) -> Finding | None:
    """The first epoch is slower than the later ones: the page cache was cold.

    Cause "cold_start", where a batch of it took COLD times one of the later epochs; in a watched
    loop, where what its first pass took longer is half of the waiting or more.
    """
    loop = evidence.loop
    ratio = (workers.first_epoch_ratio if workers else None) or 0.0
    if loop is not None:
        if not loop.cold or loop.cold < evidence.wait_share / 2:
            return None
        seen = "of the time is what the first pass took longer than the later ones"
        measured = Measured(seen, loop.cold)
    elif ratio < limits.COLD:
        return None
    else:
        first = "items of the first epoch take"
        measured = Measured("as long as those of later epochs", ratio, "times", words.TIMED, first)
    return late_batches("cold_start", measured, remedies=(cures.READ_ONCE, *feeding.FEED))


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
    return Finding(
        "input",
        "uneven_shards",
        measured=(
            Measured("the mean", uneven, "times", words.TIMED, "the busiest worker's work is"),
        ),
        remedies=(cures.DEAL_FILES_OUT, cures.RESHARD),
        at_most=uneven,
    )


def slow_code_in_the_loop(evidence: Evidence, _workers: WorkerEvidence | None) -> Finding | None:
    """The loop waits for the user's own code in its own process: sampler, dataset, collate.

    Cause "slow_line", "item" or "collate", where one function has MOST_OF_LOADING of the waiting.
    """
    return _slow_code(evidence, "waiting")


def slow_code_in_workers(evidence: Evidence, _workers: WorkerEvidence | None) -> Finding | None:
    """One function of the user's own has most of the time of the workers, whatever the cores do.

    Cause "item" or "collate", where it has MOST_OF_LOADING of it.
    """
    return _slow_code(evidence, "worker")


def _slow_code(evidence: Evidence, phase: str) -> Finding | None:
    """Return the finding that the code with most of a phase is slow; None where none has most."""
    code = evidence.loop.lines.slow_code.get(phase) if evidence.loop else None
    if code is None:
        return None
    cause = "item" if code.within else "slow_line"
    if code.within == COLLATE:
        cause = COLLATE
    first, *others = code.lines
    row = known_call(first)
    alike = [first, *(line for line in others if row is not None and known_call(line) == row)]
    part = sum(share for line, share in zip(code.lines, code.shares, strict=True) if line in alike)
    is_in_loop = phase == "waiting"
    bounds = [gain_without(evidence.wait_share), evidence.headroom or math.inf]
    bounds.append(gain_without(part * evidence.wait_share if is_in_loop else part))
    better = feeding.cheaper_line(first, min(bounds))
    # No number of workers makes a sampler quicker, nor what a loop with workers does by itself
    helps = not is_in_loop or not evidence.num_workers
    settings = feeding.SETTINGS if helps else ()
    return late_batches(
        cause,
        *words.slow_code(code, evidence.num_workers or 0),
        remedies=(better, *settings) if row else (*settings, better),
        lines=code.lines,
    )


def hand_over(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """Sending a batch from a worker to the loop takes longer than making it.

    Cause "hand_over", where the average worker had no batch to make for WORKERS_REST of the time,
    also while the loop waits, and no other program took the loop's core; or where items are so
    cheap that they are better taken a whole batch at a time.
    """
    idle = workers.idle_share or 0.0
    rests = idle >= limits.WORKERS_REST and idle + evidence.wait_share > 1
    rests = rests and not evidence.is_crowded
    is_cheap = evidence.loop is not None and feeding.at_once(evidence) is not None
    if not rests and not is_cheap:
        return None
    rest = "of the time the workers have nothing to do while the loop waits"
    torchs = "of the workers' time is torch's own: taking items one by one, stacking, sending"
    share = feeding.torchs_share(evidence)
    return late_batches(
        "hand_over",
        Measured(rest, workers.idle_share, by=words.TIMED) if rests else None,
        Measured(torchs, share) if share and is_cheap else None,
        remedies=(cures.UINT8_BATCHES, feeding.FETCH_AT_ONCE, feeding.IN_LOOP, cures.FEWER_PIECES),
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
    measured = (words.cpu(workers), words.in_line(in_line, single) if stand_in_line else None)
    remedies = (cures.ONE_THREAD, cures.ONE_THREAD_EVERYWHERE)
    return late_batches("threads", *measured, remedies=remedies)


def cores(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers compute all the time, and there is no core for another one.

    Cause "cores", where there are as many workers as cores and each computes for COMPUTES of its
    time; MOSTLY_WAITS is enough where the run used CORES_BUSY of them.
    """
    few = workers.workers < (evidence.use.cores or math.inf)
    if few or workers.computing_share < limits.MOSTLY_WAITS or not feeding.cores_full(evidence):
        return None
    measured = (words.cpu(workers), words.on_cores(evidence, workers))
    return late_batches("cores", *measured, remedies=(feeding.FETCH_AT_ONCE, feeding.CHEAPER_ITEMS))


def too_few_workers(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers compute all the time, and there are cores for more of them.

    Cause "too_few_workers", where each computes for COMPUTES of its time, and the waiting does not
    come in stalls.
    """
    if workers.computing_share < limits.COMPUTES or evidence.stalls:
        return None
    remedies = (feeding.FETCH_AT_ONCE, feeding.WORKERS, feeding.CHEAPER_ITEMS)
    measured = (words.cpu(workers), words.on_cores(evidence, workers))
    return late_batches("too_few_workers", *measured, remedies=remedies)


def storage_latency(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """The workers wait for storage or a network, each for itself.

    Cause "storage_latency", where they compute for less than MOSTLY_WAITS of their time, the
    waiting does not come in stalls.
    """
    if workers.computing_share >= limits.MOSTLY_WAITS or evidence.stalls:
        return None
    measured = (
        words.cpu(workers),
        words.took("of waiting for each item", workers.item_wait_ms),
    )
    remedies = (feeding.WORKERS, feeding.CHEAPER_ITEMS)
    return late_batches("storage_latency", *measured, remedies=remedies)


WORKER_RULES = (
    worker_hangs,
    workers_restart,
    cold_start,
    slow_items,
    uneven_shards,
    slow_code_in_the_loop,
    hand_over,
    threads,
    slow_code_in_workers,
    cores,
    too_few_workers,
    storage_latency,
)


# Where no worker was seen
LOADER_RULES = (cold_start, slow_code_in_the_loop, slow_code_in_workers)


def why_batches_are_late(evidence: Evidence) -> Finding | None:
    """Return the cause that the loader shows; None where it was not seen, or shows none."""
    workers = evidence.workers
    if workers is None:
        found = (rule(evidence, None) for rule in LOADER_RULES)
    else:
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
