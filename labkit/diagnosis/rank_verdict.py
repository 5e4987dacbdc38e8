"""What holds several ranks back, and which of them: the slow one is not the one that waits.

A rank that is short of data looks idle, the others busy, in an all-reduce that cannot complete
before the last rank has all its gradients: what they wait up to then is waiting for that rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.confidence import resampled
from labkit.diagnosis.doubts import gaps_hidden, too_short
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.rank_times import RankTimes
from labkit.diagnosis.remedies import Fit, Remedy
from labkit.diagnosis.run_verdict import where_measured
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.witnesses import deciding, witnesses
from labkit.diagnosis.wording import worded
from labkit.results.ranks import Ranks

BY_HOOK = "stamps in DDP's communication hook"
EXCHANGE_LESS = Remedy(
    "exchange_less",
    "Exchange less often (accumulation_steps with no_sync=True) or use a larger batch.",
    "exchange",
)
NO_SYNC = Remedy("no_sync", "Exchange only before an update (no_sync=True).", "exchange")
FEED_ALL = Remedy("feed_all", "Prepare batches in other processes: num_workers.", "workers")
FEED_RANK = Remedy(
    "feed_rank",
    "Feed rank $rank: its disk, its share of the files, its num_workers.",
    "workers",
)
SLOW_RANK = Remedy(
    "look_at_the_slow_rank",
    "Look at what else runs where rank $rank does, its clock and its batches' sizes.",
    "ranks",
)
ONE_RANK_ALONE = Remedy(
    "one_rank_alone",
    "Look into one rank alone, as a run of one process: lk.run(ranks.alone).diagnose().",
)


def of_ranks(ranks: Ranks) -> Diagnosis:
    """Name what holds a distributed run back, and which rank."""
    source = where_measured(ranks)
    times = ranks.times
    short = too_short(0 if times is None else len(times))
    if short is not None:
        return Diagnosis((worded(short),), 0.0, source, mark=ranks.mark)
    assert times is not None  # or it was too short
    notes = ()
    if ranks.world_size > len(ranks):
        notes = ("Only the ranks of this machine were looked at: those of others log there.",)
    findings = _by_cost(times, ranks)
    hidden = _hidden(ranks) if findings[0].name == "compute" else None
    confidence = 0.0
    if hidden:
        findings = (hidden, *findings)
    else:
        findings, confidence = resampled(
            len(times), lambda rows: _by_cost(times.take(rows), ranks), findings
        )
    told = tuple(worded(with_rank(each)) for each in findings)
    return Diagnosis(told, confidence, source, notes, mark=ranks.mark)


def with_rank(finding: Finding) -> Finding:
    """Return a finding with its remedies filled in with the rank to blame."""
    fit = Fit(words={"rank": finding.rank})
    filled = (remedy.filled(fit) for remedy in finding.remedies)
    return replace(finding, remedies=tuple(filled))


def _hidden(ranks: Ranks) -> Finding | None:
    """Return a doubt where a GPU's busy time may be gaps between kernels."""
    for rank in ranks:
        seen = witnesses(rank)
        witness = deciding(seen)
        if rank.machine.kind == "gpu" and not (witness and witness.works):
            return gaps_hidden(rank.utilization or 0.0, seen, ONE_RANK_ALONE)
    return None


def _by_cost(times: RankTimes, ranks: Ranks) -> tuple[Finding, ...]:
    """Return what costs time, the costliest first."""
    seen = "of the time, at least, every rank waits for data"
    unfed = all_wait(float(times.wait.min()), seen, "step stamps")
    worth = worth_naming(one_is_late(times), unfed, _exchange(times, ranks))
    if worth:
        return tuple(sorted(worth, key=lambda finding: -finding.lost_share))
    least = limits.WORTH_NAMING["input"]
    seen = "of the time the ranks compute; the waits for data, for another rank or for the exchange"
    measured = Measured(f"{seen} are below {least:.0%} each", float(times.compute.mean()))
    cause = "the_devices_are_the_limit"
    return (Finding("compute", cause, measured=(measured,), remedies=(ONE_RANK_ALONE,)),)


def worth_naming(*found: Finding | None) -> list[Finding]:
    """Return those of the findings that cost enough."""
    limit = limits.WORTH_NAMING
    return [finding for finding in found if finding and finding.lost_share >= limit[finding.name]]


def all_wait(lost: float, seen: str, by: str) -> Finding:
    """No rank has its data in time.

    Cause "all_ranks_are_short_of_data". It costs the least wait of a rank.
    """
    measured = (Measured(seen, lost, by=by),)
    return Finding("input", "all_ranks_are_short_of_data", lost, measured, (FEED_ALL,))


def _exchange(times: RankTimes, ranks: Ranks) -> Finding:
    """Ranks wait for gradients that all of them have computed.

    Cause "the_exchange_is_not_hidden". It costs the mean share of that waiting.
    """
    transfer = float(times.transfer.mean())
    here = " of this machine" if ranks.world_size > len(ranks) else ""
    seen = f"of the time ranks wait for gradients that every rank{here} has computed"
    rarely = ranks.pipeline.accumulation_steps > 1 and not ranks.no_sync
    remedy = NO_SYNC if rarely else EXCHANGE_LESS
    measured = (Measured(seen, transfer, by=f"not overlapped; {BY_HOOK}"),)
    return Finding("communication", "the_exchange_is_not_hidden", transfer, measured, (remedy,))


def slower_rank(rank: int, lost: float, *measured: Measured) -> Finding:
    """One rank holds the others up."""
    remedies = (SLOW_RANK,)
    return Finding("straggler", "one_rank_is_slower", lost, measured, remedies, rank=rank)


def one_is_late(
    times: RankTimes, came_last: str = "gradients came", by: str = BY_HOOK
) -> Finding | None:
    """One rank is last in nearly all steps: by its own wait for data, or otherwise.

    Cause "one_rank_is_slower", where it is last in SAME_RANK of the steps, and
    "one_rank_is_short_of_data" where it waits for data longer than the others do by OWN_WAIT of
    what they wait for it. It costs the time that the others wait for it.
    """
    exchanged = times.late[times.late >= 0]
    if len(times.ranks) < 2 or not len(exchanged):
        return None
    counts = np.bincount(exchanged, minlength=len(times.ranks))
    late = int(counts.argmax())
    if counts[late] < limits.SAME_RANK * len(exchanged):
        return None
    rank = times.ranks[late]
    lost = float(np.delete(times.others, late).mean())
    own_wait = float(times.wait[late])
    others_wait = float(np.delete(times.wait, late).mean())
    last = f"rank {rank}'s {came_last} last in {counts[late]} of {len(exchanged)} steps"
    waited = "of the time the others waited for that, seemingly busy, in the all-reduce"
    found = slower_rank(
        rank,
        lost,
        Measured(last, by=by),
        Measured(waited, lost),
        Measured("of the time it waited for data itself", own_wait),
        Measured("of the time the others did", others_wait),
    )
    if own_wait - others_wait < limits.OWN_WAIT * lost:
        return found
    cause = "one_rank_is_short_of_data"
    return replace(found, name="input", cause=cause, remedies=(FEED_RANK,))
