"""What holds several ranks back, and which of them: the slow one is not the one that waits.

Ranks that train together meet once a step, in the exchange of their gradients. A rank that is short
of data looks idle, the others busy, in an all-reduce that cannot complete before the last rank has
all its gradients. So the late rank is the one that takes longest for its own part of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.findings import Finding, Measured, Remedy, bound
from labkit.diagnosis.judge import of_run
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.core_use import CoreUse
from labkit.results.rank_times import RankTimes
from labkit.results.run_data import RunData

EXCHANGE_LESS = Remedy(
    "exchange_less",
    "Exchange gradients less often: with accumulation, only before an update (no_sync), or use a "
    "larger batch.",
    "exchange",
)
FEED_RANK = Remedy(
    "feed_rank", "Feed that rank: its disk, its share of the files, its num_workers.", "workers"
)
LOOK_AT_IT = Remedy(
    "look_at_the_slow_rank",
    "Do less often what that rank does alone, as all ranks wait for it; else look at what else "
    "runs there, its clock and its batches' sizes.",
    "ranks",
)


@dataclass(frozen=True)
class RanksVerdict:
    """What holds several ranks back."""

    rank: int  # the one whose record says why
    verdict: Diagnosis
    own: Mapping[int, Diagnosis]  # of each rank, judged alone


def of_ranks(runs: Mapping[int, RunData], times: RankTimes | None) -> RanksVerdict:
    """Name what holds ranks back, from the run of each and where their steps went together.

    Then comes what the rank to blame shows when it is judged alone.
    """
    runs = dict(sorted(runs.items()))
    cores = {rank: CoreUse.of(run).own or 0.0 for rank, run in runs.items()}
    own = {rank: of_run(run, sum(cores.values()) - cores[rank]) for rank, run in runs.items()}
    if len(own) == 1:
        return RanksVerdict(min(own), own[min(own)], own)
    if times is None or len(times) < limits.MIN_STEPS:
        return _as_one(own, min(own), "The ranks have too few steps in common, or are not in step")
    found = [each for each in (_one_is_late(times), _exchange(times)) if each]
    if not found:
        loses_most = max(own, key=lambda rank: own[rank].findings[0].lost_share)
        return _as_one(own, loses_most, f"No one of the {len(own)} ranks is late")
    found.sort(key=lambda each: -each.lost_share)
    blamed = next((each.rank for each in found if each.rank is not None), min(own))
    told = [worded(replace(each, at_most=bound(each.lost_share))) for each in found]
    told += [each for each in own[blamed].findings if each.lost_share]
    return RanksVerdict(blamed, replace(own[blamed], findings=tuple(told)), own)


def _as_one(own: Mapping[int, Diagnosis], rank: int, why: str) -> RanksVerdict:
    """Return the verdict of one rank as that of all, and why."""
    note = f"{why}: this is the verdict of rank {rank}."
    return RanksVerdict(rank, replace(own[rank], notes=(*own[rank].notes, note)), own)


def _one_is_late(times: RankTimes) -> Finding | None:
    """One rank takes longer for its own part of a step than the others do: they wait for it.

    Cause "one_rank_is_short_of_data", where most of that is its wait for data, and else
    "one_rank_is_slower". It costs what it takes longer. None where that is not worth a name.
    """
    mean_ms = {part: 1e3 * each.mean(axis=1) for part, each in times.seconds.items()}
    own_ms = mean_ms["step"] - mean_ms["others"] - mean_ms["transfer"]
    wait_ms = mean_ms["wait"]
    late = int(own_ms.argmax())
    rest_ms = float(np.delete(own_ms, late).mean())
    longer_ms = float(own_ms[late]) - rest_ms
    lost = longer_ms / float(mean_ms["step"].mean())
    if lost < limits.WORTH_NAMING["straggler"]:
        return None
    for_own, for_data = float(own_ms[late]), float(wait_ms[late])
    rank = times.ranks[late]
    measured = (
        Measured("of each step for its own part", for_own, "ms", before=f"rank {rank} takes"),
        Measured("and then wait for it, seemingly busy", rest_ms, "ms", before="the others take"),
        Measured("", for_data, "ms", "stamps of all ranks", f"rank {rank} waits for data for"),
    )
    if for_data - np.delete(wait_ms, late).mean() < longer_ms / 2:
        return Finding("straggler", "one_rank_is_slower", lost, measured, (LOOK_AT_IT,), rank=rank)
    cause = "one_rank_is_short_of_data"
    return Finding("input", cause, lost, measured, (FEED_RANK,), rank=rank)


def _exchange(times: RankTimes) -> Finding | None:
    """Ranks wait for gradients that all of them have computed.

    Cause "the_exchange_is_not_hidden". It costs the mean share of that waiting.
    """
    lost = float(times.transfer.mean())
    if lost < limits.WORTH_NAMING["communication"]:
        return None
    seen = "of the time ranks wait for gradients that every rank has computed"
    measured = (Measured(seen, lost, by="not overlapped; stamps in DDP's communication hook"),)
    return Finding("communication", "the_exchange_is_not_hidden", lost, measured, (EXCHANGE_LESS,))
