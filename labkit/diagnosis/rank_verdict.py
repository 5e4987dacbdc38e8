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
from labkit.diagnosis.findings import Finding, Remedy, loss
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
    cores = {rank: CoreUse.of(run).own or 0.0 for rank, run in sorted(runs.items())}
    own = {rank: of_run(runs[rank], sum(cores.values()) - cores[rank]) for rank in cores}
    found: list[Finding] = []
    if times is not None and len(times) >= limits.MIN_STEPS and len(own) > 1:
        found += filter(None, (_one_is_late(times), _exchange(times)))
    if not found:
        rank = max(own, key=lambda each: own[each].findings[0].lost_share)
        note = f"No one of the {len(own)} ranks is seen to be late: this is of rank {rank} alone."
        notes = (*own[rank].notes, note) if len(own) > 1 else own[rank].notes
        return RanksVerdict(rank, replace(own[rank], notes=notes), own)
    found.sort(key=lambda each: -each.lost_share)
    blamed = next((each.rank for each in found if each.rank is not None), min(own))
    alone = (each for each in own[blamed].findings if each.lost_share)
    told = (*map(worded, found), *alone)
    return RanksVerdict(blamed, replace(own[blamed], findings=told), own)


def _one_is_late(times: RankTimes) -> Finding | None:
    """One rank takes longer for its own part of a step than the others do: they wait for it.

    Cause "one_rank_is_short_of_data", where most of that is its wait for data, and else
    "one_rank_is_slower". It costs what it takes longer. None where that is not worth a name.
    """
    ms = {part: 1e3 * each.mean(axis=1) for part, each in times.seconds.items()}
    own_ms = ms["step"] - ms["others"] - ms["transfer"]
    late = int(own_ms.argmax())
    waits_ms, rest_wait_ms = ms["wait"][late], np.delete(ms["wait"], late).mean()
    takes_ms, rest_ms = own_ms[late], np.delete(own_ms, late).mean()
    lost = float((takes_ms - rest_ms) / ms["step"].mean())
    if lost < limits.WORTH_NAMING["straggler"]:
        return None
    rank = times.ranks[late]
    seen = f"of each step: rank {rank} takes {takes_ms:.1f} ms for its own part; the others take "
    seen += (
        f"{rest_ms:.1f} ms and then wait for it, seemingly busy; rank {rank} waits for data for "
    )
    seen += f"{waits_ms:.1f} ms"
    if waits_ms - rest_wait_ms < (takes_ms - rest_ms) / 2:
        name, cause, remedy = "straggler", "one_rank_is_slower", LOOK_AT_IT
    else:
        name, cause, remedy = "input", "one_rank_is_short_of_data", FEED_RANK
    return loss(name, cause, lost, seen, "stamps of all ranks", remedy, rank=rank)


def _exchange(times: RankTimes) -> Finding | None:
    """Ranks wait for gradients that all of them have computed.

    Cause "the_exchange_is_not_hidden". It costs the mean share of that waiting.
    """
    lost = float(times.transfer.mean())
    if lost < limits.WORTH_NAMING["communication"]:
        return None
    seen = "of the time ranks wait for gradients that every rank has computed"
    by = "not overlapped; stamps in DDP's communication hook"
    return loss("communication", "the_exchange_is_not_hidden", lost, seen, by, EXCHANGE_LESS)
