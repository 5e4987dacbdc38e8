"""Why the loop waits for data: its workers' threads and caches, its epochs, a few slow items.

Each rule looks for one cause; the first of `STATE_RULES` that finds its own speaks. It costs the
loop's waiting for data, which `idle_rules.waiting_for_data` fills in.
"""

from __future__ import annotations

from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import worker_remedies as cures
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, late_batches
from labkit.diagnosis.worker_words import TIMED
from labkit.results.text import counted


def crowding_threads(evidence: Evidence) -> Finding | None:
    """Libraries in the workers compute with several threads each, more than there are cores.

    Cause "threads". Where they were not counted, a worker's CPU time over its time tells how many
    compute; beside others that want the cores it tells too few.
    """
    workers = evidence.workers
    cores = evidence.use.cores
    if workers is None or not cores:
        return None
    each = max(1 + workers.library_threads, round(workers.cpu_share))
    if each < 2 or each * workers.workers <= cores:
        return None
    seen = f"each of {counted(workers.workers, 'worker')} computes with {each} threads"
    measured = (
        Measured(f"{seen}, {each * workers.workers} in all, on {counted(cores, 'core')}", by=TIMED),
    )
    return late_batches("threads", *measured, remedies=(cures.ONE_THREAD,))


def cache_that_ends(evidence: Evidence) -> Finding | None:
    """What the dataset keeps is gone with the workers of each epoch, and is made anew in the next.

    Cause "lost_cache", where the entries that were kept are CACHED of the items or more, and later
    epochs wait as long as the first.
    """
    lost = evidence.workers.lost_cache if evidence.workers else None
    if lost is None or evidence.epochs.first >= evidence.wait_share / 2:
        return None
    if lost.entries < limits.CACHED * lost.items:
        return None
    kept = f"`{lost.name}` has {lost.entries:.0f} entries when a worker ends with its epoch, after "
    return late_batches(
        "lost_cache",
        Measured(f"{kept}{lost.items:.0f} items; the next worker begins with none"),
        remedies=(cures.KEEP_THE_CACHE,),
    )


def workers_restart(evidence: Evidence) -> Finding | None:
    """The first batch of every epoch waits for workers that start anew.

    Cause "workers_restart", where the first batches of later epochs make up half of the waiting.
    """
    epochs = evidence.epochs
    if not evidence.num_workers or not epochs.starts or epochs.starts < evidence.wait_share / 2:
        return None
    return late_batches(
        "workers_restart",
        Measured("of the time is the start of later epochs", epochs.starts),
        Measured("to an epoch's first batch", epochs.starts_ms, "ms"),
        remedies=(cures.PERSISTENT, *feeding.SETTINGS),
    )


def cold_start(evidence: Evidence) -> Finding | None:
    """The first epoch waits longer than the later ones: a cache of the system or dataset was empty.

    Cause "cold_start", where that is half of the waiting.
    """
    if not evidence.epochs.first or evidence.epochs.first < evidence.wait_share / 2:
        return None
    longer = "of the time is what the first epoch waited longer than later ones"
    return late_batches(
        "cold_start",
        Measured(longer, evidence.epochs.first),
        remedies=(cures.READ_ONCE,),
    )


def few_slow_items(evidence: Evidence) -> Finding | None:
    """A few items take far longer than the others, and the loop waits for their batches.

    Cause "stuck", where they compute for less than MOSTLY_WAITS of their time, and last STUCK_S or
    longer each; else "slow_items". It is found where
    they take SLOW_SHARE of the time in which items are prepared, or the loop waits that much more
    for their batches than for others.
    """
    slow = evidence.slow_items
    if slow is None or max(slow.cost.share, slow.cost.held_up) < limits.SLOW_SHARE:
        return None
    cost = slow.cost
    waits = cost.cpu_share < limits.MOSTLY_WAITS
    named = f" ({', '.join(map(str, slow.indices[:5]))})" if slow.indices else ""
    one = cost.worker if evidence.workers and evidence.workers.workers > 1 else None
    who = "" if one is None else f", all in worker {one}"
    does = "a few items wait" if waits else "a few items take"
    often = f"each, {cost.times:.0f} times as long as the others, 1 item in {cost.one_in}{named}"
    took = (1e3 * cost.seconds, "ms") if cost.seconds < 1 else (cost.seconds, "s")
    measured = [
        Measured(often, *took, by=TIMED, before=does),
        Measured(f"of the time in which items are prepared goes to them{who}", cost.share),
        *(Measured(f"they are in {line.what}") for line in slow.lines[:1]),
    ]
    cause = "slow_items"
    remedies = (cures.BRIDGE, cures.SLOW_ITEMS_OFFLINE, feeding.WORKERS)
    if waits and cost.seconds >= limits.STUCK_S:
        cause = "stuck"
        remedies = (cures.WHAT_IT_WAITS_FOR, cures.BRIDGE, feeding.WORKERS)
    return late_batches(cause, *measured, remedies=remedies, lines=slow.lines)


STATE_RULES = (
    crowding_threads,
    cache_that_ends,
    workers_restart,
    cold_start,
    few_slow_items,
)


def what_workers_show(evidence: Evidence) -> Finding | None:
    """Return the cause that the first of the rules finds; None where none does, or one hangs."""
    if evidence.workers is not None and evidence.workers.hang is not None:
        return None
    return next(filter(None, (rule(evidence) for rule in STATE_RULES)), None)
