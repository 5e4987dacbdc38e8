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


def worker_hangs(evidence: Evidence, workers: WorkerEvidence) -> Finding | None:
    """A worker that has an item to make made no progress to the end of the record.

    Cause "hang", where that lasted HANGS_S or longer.
    """
    hang = workers.hang
    if hang is None or hang.seconds < limits.HANGS_S:
        return None
    return late_batches("hang", words.no_progress(hang), remedies=(cures.GIVE_UP_WAITING,))


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
        remedies=(cures.EVEN_SHARDS,),
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
        Measured("of waiting for each item", workers.item_wait_ms, "ms"),
    )
    remedies = (feeding.WORKERS, feeding.CHEAPER_ITEMS)
    return late_batches("storage_latency", *measured, remedies=remedies)


WORKER_RULES = (
    worker_hangs,
    uneven_shards,
    slow_code_in_the_loop,
    hand_over,
    slow_code_in_workers,
    cores,
    too_few_workers,
    storage_latency,
)


# Where no worker was seen
LOADER_RULES = (slow_code_in_the_loop, slow_code_in_workers)


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
