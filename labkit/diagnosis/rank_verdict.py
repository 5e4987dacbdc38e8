"""What holds several ranks back, and which of them: the slow one is not the one that waits.

Ranks that train together meet once a step, in the exchange of their gradients. A rank that is short
of data looks idle, the others busy, in an all-reduce that cannot complete before the last rank has
all its gradients. So the late rank is the one that takes longest for its own part of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.findings import Finding, Measured, Remedy, bound
from labkit.diagnosis.judge import of_run, resampled
from labkit.diagnosis.rank_times import RankTimes, may_wait
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.run import Run

EXCHANGE_LESS = Remedy(
    "exchange_less",
    "Exchange gradients less often: with accumulation, only before an update (no_sync), or use a "
    "larger batch.",
    "exchange",
)
FEED_ALL = Remedy("feed_all", "Prepare batches in other processes: num_workers.", "workers")
ALIKE = Finding("compute", "the_ranks_are_alike")


@dataclass(frozen=True)
class RanksVerdict:
    """What holds several ranks back."""

    rank: int  # the one whose record says why
    verdict: Diagnosis
    own: Mapping[int, Diagnosis]  # of each rank, judged alone


def of_ranks(runs: Mapping[int, Run], times: RankTimes | None) -> RanksVerdict:
    """Name what holds ranks back, from the run of each and where their steps went together."""
    runs = dict(sorted(runs.items()))
    cores = {rank: CoreUse.of(run).own or 0.0 for rank, run in runs.items()}
    together = sum(cores.values())
    own = {rank: of_run(run, together - cores[rank]) for rank, run in runs.items()}
    if len(own) == 1:
        return _as_one(own, min(own))
    if times is None or len(times) < limits.MIN_STEPS:
        return _as_one(own, min(own), "The ranks have too few steps in common, or are not in step")
    findings, confidence = resampled(
        len(times), lambda steps: _by_cost(times.take(steps)), _by_cost(times)
    )
    if ALIKE in findings:
        loses_most = max(own, key=lambda rank: own[rank].findings[0].lost_share)
        return _as_one(own, loses_most, f"The {len(own)} ranks are alike")
    late = next((each.rank for each in findings if each.rank is not None), None)
    blamed = times.ranks[int(times.wait.argmax())] if late is None else late
    told = [_told(each, runs, blamed, own[blamed]) for each in findings]
    named = {each.name for each in told}
    told += [each for each in own[blamed].findings if each.lost_share and each.name not in named]
    use = CoreUse.of(runs[blamed], together - cores[blamed])
    confidence *= 1 - min(use.others_share, 1.0) if use.is_shared else 1.0
    verdict = replace(own[blamed], findings=tuple(told), confidence=confidence)
    return RanksVerdict(blamed, verdict, own)


def _as_one(own: Mapping[int, Diagnosis], rank: int, why: str = "") -> RanksVerdict:
    """Return the verdict of one rank as that of all, and why."""
    note = (f"{why}: this is the verdict of rank {rank}.",) if why else ()
    return RanksVerdict(rank, replace(own[rank], notes=(*own[rank].notes, *note)), own)


# -- what is found ---------------------------------------------------------------------------------


def _by_cost(times: RankTimes) -> tuple[Finding, ...]:
    """Return what costs the ranks time; `ALIKE` where nothing sets one of them apart."""
    late = _one_is_late(times)
    found = (late or _all_wait(times), _exchange(times))
    worth = [each for each in found if each.lost_share >= limits.WORTH_NAMING[each.name]]
    return tuple(sorted(worth, key=lambda each: -each.lost_share)) or (ALIKE,)


def _one_is_late(times: RankTimes) -> Finding | None:
    """One rank takes longer for its own part of a step than the others do: they wait for it.

    Cause "one_rank_is_short_of_data", where most of that is its wait for data, and else
    "one_rank_is_slower". It costs what it takes longer. None where that is not worth a name.
    """
    own = times.own.mean(axis=1)
    step = float(times.seconds["step"].mean())
    late = int(own.argmax())
    rank = times.ranks[late]
    own_ms, rest_ms = _against_others(own, late)
    wait_ms, waits_ms = _against_others(times.seconds["wait"].mean(axis=1), late)
    lost = (own_ms - rest_ms) / step / 1e3
    measured = (
        Measured("of each step for its own part", own_ms, "ms", before=f"rank {rank} takes"),
        Measured("and then wait for it, seemingly busy", rest_ms, "ms", before="the others take"),
        Measured("", wait_ms, "ms", before=f"rank {rank} waits for data for"),
        Measured("", waits_ms, "ms", "stamps of all ranks", "the others for"),
    )
    if lost < limits.WORTH_NAMING["straggler"]:
        return None
    if wait_ms - waits_ms < (own_ms - rest_ms) / 2:
        advice = f"Look at what else runs where rank {rank} does, its clock and its batches' sizes."
        slow = Remedy("look_at_the_slow_rank", advice, "ranks")
        return Finding("straggler", "one_rank_is_slower", lost, measured, (slow,), rank=rank)
    advice = f"Feed rank {rank}: its disk, its share of the files, its num_workers."
    feed = Remedy("feed_rank", advice, "workers")
    return Finding("input", "one_rank_is_short_of_data", lost, measured, (feed,), rank=rank)


def _against_others(seconds: np.ndarray, rank: int) -> tuple[float, float]:
    """Return the value of one rank and the mean of the others', ms."""
    return float(seconds[rank]) * 1e3, float(np.delete(seconds, rank).mean()) * 1e3


def _all_wait(times: RankTimes) -> Finding:
    """Some rank or other has its data late, in each step another.

    Cause "all_ranks_are_short_of_data". It costs the longest wait of a rank in each step.
    """
    lost = float(times.seconds["wait"].max(axis=0).mean() / times.seconds["step"].mean())
    seen = "of the time some rank waits for its batch, and no rank is the late one in most steps"
    measured = (Measured(seen, lost, by="stamps of all ranks"),)
    return Finding("input", "all_ranks_are_short_of_data", lost, measured, (FEED_ALL,))


def _exchange(times: RankTimes) -> Finding:
    """Ranks wait for gradients that all of them have computed.

    Cause "the_exchange_is_not_hidden". It costs the mean share of that waiting.
    """
    lost = float(times.transfer.mean())
    seen = "of the time ranks wait for gradients that every rank has computed"
    measured = (Measured(seen, lost, by="not overlapped; stamps in DDP's communication hook"),)
    return Finding("communication", "the_exchange_is_not_hidden", lost, measured, (EXCHANGE_LESS,))


# -- why -------------------------------------------------------------------------------------------


def _told(found: Finding, runs: Mapping[int, Run], blamed: int, own: Diagnosis) -> Finding:
    """Return a finding in words, with what the rank to blame shows when it is judged alone."""
    found = replace(found, at_most=bound(found.lost_share))
    longer = _longer_line(runs, blamed) if found.name == "straggler" else None
    if longer is not None:
        advice = (
            f"Take that out of rank {blamed}'s step, or do it less often: all ranks wait for what "
            "one does alone."
        )
        remedies = (Remedy("on_one_rank", advice, "lines"), *found.remedies)
        found = replace(found, measured=(*found.measured, longer), remedies=remedies)
    cause = next((each for each in own.findings if each.name == found.name == "input"), None)
    if cause is None or (found.rank is not None and not cause.lines):
        return worded(found)  # what all ranks have in common makes none of them late
    joined = replace(
        found,
        cause=cause.cause,
        measured=(*found.measured, *cause.measured[1:]),  # without the share of its own waiting
        remedies=(*cause.remedies, *found.remedies),
        lines=cause.lines,
    )
    return replace(worded(joined), code=cause.code)


def _longer_line(runs: Mapping[int, Run], rank: int) -> Measured | None:
    """Return the line that takes more of a step on one rank than on the others."""
    took = {each: _line_ms(run) for each, run in runs.items()}
    longer_ms = {
        line: ms - fmean(took[each].get(line, 0.0) for each in took if each != rank)
        for line, ms in took[rank].items()
    }
    most = max(longer_ms, key=longer_ms.__getitem__, default="")
    least_ms = limits.WORTH_NAMING["straggler"] / 2 * (runs[rank].step_ms or 0.0)
    if not most or longer_ms[most] < least_ms:
        return None
    others = "longer in a step than on the other ranks"
    return Measured(others, longer_ms[most], "ms", "stacks sampled in all ranks", f"{most} takes")


def _line_ms(run: Run) -> dict[str, float]:
    """Return how long each line of the body takes in a step, ms, where no rank waits in it."""
    rows = run.lines.rows(run.lines.mask("body") & ~may_wait(run))
    return {line.what: line.share * (run.step_ms or 0.0) for line in rows}
