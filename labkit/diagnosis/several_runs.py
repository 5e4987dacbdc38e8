"""What holds back several runs that belong together: the ranks of a job, the loops of a script.

Ranks that train together meet once a step, in the exchange of their gradients. A rank that is short
of data looks idle, the others busy, in an all-reduce that cannot complete before the last rank has
all its gradients. So the late rank is the one that takes longest for its own part of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.findings import Diagnosis, Finding, Remedy, loss
from labkit.diagnosis.judge import lead, of_run
from labkit.diagnosis.wall_shares import trains, wall_shares
from labkit.diagnosis.wording import with_advice
from labkit.process.leftovers import recover_loop
from labkit.results.core_use import CoreUse
from labkit.results.ranks import rank_times
from labkit.results.run_data import RunData
from labkit.stamps.events import EventLog
from labkit.watching.run_folders import folders_in, process_of, rank_of

if TYPE_CHECKING:
    import pandas

EXCHANGE_LESS = Remedy(
    "exchange_less",
    "Exchange gradients less often: with accumulation, only before an update (no_sync), or use a "
    "larger batch.",
)
FEED_RANK = Remedy(
    "feed_rank", "Feed that rank: its disk, its share of the files, its num_workers."
)
LOOK_AT_IT = Remedy(
    "look_at_the_slow_rank",
    "Do less often what that rank does alone, as all ranks wait for it; else look at what else "
    "runs there, its clock and its batches' sizes.",
)
LEAST_PASSES = 5  # of one batch: fewer look at what a batch is


def of_ranks(runs: Mapping[int, RunData], times: pandas.DataFrame | None) -> tuple[int, Diagnosis]:
    """Name what holds ranks back, from the run of each and where their steps went together.

    Then comes what the rank to blame, which is returned before the verdict, shows when it is judged
    alone.
    """
    cores = {rank: CoreUse.of(run).own or 0.0 for rank, run in sorted(runs.items())}
    own = {rank: of_run(runs[rank], sum(cores.values()) - cores[rank]) for rank in cores}
    found = between_ranks(times) if times is not None and len(own) > 1 else []
    late = [each.rank for each in found if each.rank is not None]
    rank = late[0] if late else max(own, key=lambda each: own[each].findings[0].lost_share)
    verdict = own[rank]
    if found:
        is_doubted = verdict.findings[0].cause == "neighbour"
        alone = (each for each in verdict.findings if each.lost_share or each.cause == "neighbour")
        total = {each.name: each.lost_share for each in found}
        others = CoreUse.of(runs[rank], sum(cores.values()) - cores[rank]).others_share
        verdict = replace(
            verdict,
            findings=(*map(with_advice, found), *alone),
            confidence=0.0 if is_doubted else lead(found[0], total) * (1 - others),
        )
    return rank, verdict


def between_ranks(times: pandas.DataFrame) -> list[Finding]:
    """Return what ranks lose by each other and is worth a name, the costliest first.

    Causes: "one_rank_is_short_of_data", where most of what one takes longer for its own part of a
    step is its wait for data; else "one_rank_is_slower"; "the_exchange_is_not_hidden", where ranks
    wait for gradients that all of them have computed.
    """
    if times.steps.min() < limits.MIN_STEPS:
        return []
    own = 1 - times.others - times.transfer  # of each rank's time: what the others wait for
    rank = int(own.idxmax())
    longer, waits_longer = (each[rank] - each.drop(rank).mean() for each in (own, times.wait))
    seen = f"of the time the others wait for rank {rank}, seemingly busy: its own part of a "
    seen += f"step is longer; rank {rank} waits for data for {times.wait[rank]:.0%} of its time"
    name, what, remedy = "straggler", "one_rank_is_slower", LOOK_AT_IT
    if waits_longer >= longer / 2:
        name, what, remedy = "input", "one_rank_is_short_of_data", FEED_RANK
    page, by, lost = "symptoms/ranks.md", "stamps of all ranks", float(longer)
    is_late = loss(name, page, lost, seen, by, remedy, cause=what, rank=rank)
    lost, by = float(times.transfer.mean()), "stamps in DDP's communication hook"
    seen = "of the time ranks wait for gradients that every rank has computed, not overlapped"
    what = "the_exchange_is_not_hidden"
    exchange = loss("communication", page, lost, seen, by, EXCHANGE_LESS, cause=what)
    found = sorted((is_late, exchange), key=lambda each: -each.lost_share)
    return [each for each in found if each.lost_share >= limits.WORTH_NAMING[each.name]]


# -- the loops of a watched script -----------------------------------------------------------------


def runs_in(folder: Path) -> list[RunData]:
    """Return the runs of a script that can be read."""
    found = []
    for each in folders_in(folder):
        with contextlib.suppress(ValueError, OSError):
            recover_loop(each)
            found.append(run := RunData(each))
            run.follow()
    return found


def dropped_passes(runs: list[RunData]) -> str:
    """Say that a script makes an iterator for each batch, `next(iter(loader))`; "" where none does.

    That is one of which no loop that trains was recorded, but passes that ended before a step.
    """
    passes = max((len(run.all("pass")) for run in runs if not run.steps), default=0)
    if passes < LEAST_PASSES or any(run.steps and trains(run) for run in runs):
        return ""
    return (
        f"a new iterator is made for each batch ({passes} times), which starts the workers and "
        "draws an order. Loop over the loader, or take all batches of an epoch from one iterator."
    )


def judge_runs(
    runs: list[RunData], start_ns: int = 0, end_ns: int = 0
) -> tuple[RunData, Diagnosis] | None:
    """Judge the longest loop that trains; of several ranks, that of all of them.

    Before the verdict stands the run whose record says why. None where no run has a step. The
    script ran from `start_ns` to `end_ns`; else from the first pass over a loader to the last.
    """
    runs = sorted((run for run in runs if run.steps), key=lambda run: (trains(run), run.length_s))
    if not runs:
        return None
    longest = {rank_of(run.path): run for run in runs}
    for run in longest.values():
        _write_shares(run, runs, start_ns, end_ns)
    rank, verdict = of_ranks(longest, rank_times(longest))
    return longest[rank], verdict


def _write_shares(run: RunData, runs: list[RunData], start_ns: int, end_ns: int) -> None:
    """Write into a run's log how the time of its process was shared out."""
    of_process = [each for each in runs if process_of(each.path) == process_of(run.path)]
    ended_ns = 0 if any(each.event("full") for each in of_process) else end_ns
    shares = wall_shares(of_process, start_ns, ended_ns)
    if shares is not None:
        log = EventLog(run.path)
        log.write("wall", **asdict(shares))
        log.close()
        run.follow()
