"""What holds several ranks back, and which of them: the slow one is not the one that waits.

Ranks that train together meet once a step, in the exchange of their gradients. A rank that is short
of data looks idle, the others busy, in an all-reduce that cannot complete before the last rank has
all its gradients. So the late rank is the one that takes longest for its own part of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.findings import Finding, Remedy, loss
from labkit.diagnosis.judge import of_run
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData

if TYPE_CHECKING:
    import pandas

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


def of_ranks(runs: Mapping[int, RunData], times: pandas.DataFrame | None) -> RanksVerdict:
    """Name what holds ranks back, from the run of each and where their steps went together.

    Then comes what the rank to blame shows when it is judged alone.
    """
    cores = {rank: CoreUse.of(run).own or 0.0 for rank, run in sorted(runs.items())}
    own = {rank: of_run(runs[rank], sum(cores.values()) - cores[rank]) for rank in cores}
    found = between_ranks(times) if times is not None and len(own) > 1 else []
    late = [each.rank for each in found if each.rank is not None]
    rank = late[0] if late else max(own, key=lambda each: own[each].findings[0].lost_share)
    verdict = own[rank]
    if found:
        alone = (each for each in verdict.findings if each.lost_share)
        verdict = replace(verdict, findings=(*map(worded, found), *alone))
    elif len(own) > 1:
        note = f"No one of the {len(own)} ranks is seen to be late: this is of rank {rank} alone."
        verdict = replace(verdict, notes=(*verdict.notes, note))
    return RanksVerdict(rank, verdict, own)


def between_ranks(times: pandas.DataFrame) -> list[Finding]:
    """Return what ranks lose by each other and is worth a name, the costliest first.

    Causes: "one_rank_is_short_of_data", where most of what one takes longer for its own part of a
    step is its wait for data; else "one_rank_is_slower"; "the_exchange_is_not_hidden", where ranks
    wait for gradients that all of them have computed.
    """
    if times.steps.min() < limits.MIN_STEPS:
        return []
    own = 1 - times.others - times.transfer  # of each rank's time: what the others wait for
    rank, step_ms = int(own.idxmax()), times.step_ms.mean()
    longer, waits_longer = (each[rank] - each.drop(rank).mean() for each in (own, times.wait))
    seen = f"of the time the others wait for rank {rank}, seemingly busy: it takes "
    seen += f"{own[rank] * step_ms:.1f} ms of a step for its own part, {longer * step_ms:.1f} ms "
    seen += f"more than they do; rank {rank} waits for data for {times.wait[rank] * step_ms:.1f} ms"
    what, remedy = ("straggler", "one_rank_is_slower"), LOOK_AT_IT
    if waits_longer >= longer / 2:
        what, remedy = ("input", "one_rank_is_short_of_data"), FEED_RANK
    is_late = loss(*what, float(longer), seen, "stamps of all ranks", remedy, rank=rank)
    lost = float(times.transfer.mean())
    seen = "of the time ranks wait for gradients that every rank has computed, not overlapped"
    by = "stamps in DDP's communication hook"
    name = "the_exchange_is_not_hidden"
    exchange = loss("communication", name, lost, seen, by, EXCHANGE_LESS)
    least = limits.WORTH_NAMING
    found = [is_late] if longer >= least["straggler"] else []
    found += [exchange] if lost >= least["communication"] else []
    return sorted(found, key=lambda each: -each.lost_share)
