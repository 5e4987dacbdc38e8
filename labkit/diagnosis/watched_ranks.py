"""One verdict for the ranks of a watched script: which of them is late, and why.

Ranks that train together meet once a step, in the exchange of their gradients. No stamp tells when
a rank gets there, as the bench's own ranks do, so two things stand in for it. On a clock that all
processes of a machine share, a rank that has its batch last comes last. And of ranks that take the
same time for a step, the late one spends the least of it where the others wait: in `backward()`,
and in reading a value from the device. Of ranks on GPUs no host waits in `backward()`, which only
queues work there, but it does in a copy to the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from labkit.bench.kind_names import INNER_SYNC
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.confidence import resampled
from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.findings import Finding, Measured, WordedFinding, bound
from labkit.diagnosis.rank_times import RankTimes, step_parts
from labkit.diagnosis.rank_verdict import (
    all_wait,
    one_is_late,
    slower_rank,
    with_rank,
    worth_naming,
)
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.run_verdict import of_run
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.run import Run

MEETING = (
    "backward",
    "sync",
    INNER_SYNC,
    "exchange",
)  # kinds of work in which a rank waits for the others
ON_GPUS = ("copy", "sync", INNER_SYNC, "exchange")  # and those of ranks on GPUs
BY_STAMPS = "step stamps of all ranks"
BY_STACKS = "stacks sampled in all ranks"
ON_ONE_RANK = Remedy(
    "on_one_rank",
    "Take that out of rank $rank's step, or do it less often: all ranks wait for what one does "
    "alone.",
    "lines",
)
ALIKE = Finding("compute", "the_ranks_are_alike")
APART = "The ranks are not in step with each other, so each was judged alone"
ALL_ALIKE = "The {} ranks are alike"


@dataclass(frozen=True)
class RanksVerdict:
    """What holds a script of several ranks back."""

    rank: int  # the one whose record says why
    verdict: Diagnosis
    own: Mapping[int, Diagnosis]  # of each rank, judged alone


def of_watched_ranks(runs: Mapping[int, Run]) -> RanksVerdict:
    """Name what holds the ranks of a watched script back, from the run of each rank's loop."""
    runs = dict(sorted(runs.items()))
    cores = {rank: CoreUse.of(run) for rank, run in runs.items()}
    used = {rank: each.own or 0.0 for rank, each in cores.items()}
    together = sum(used.values())
    own = {rank: of_run(run, together - used[rank]) for rank, run in runs.items()}
    if len(runs) == 1:
        return RanksVerdict(min(own), own[min(own)], own)
    times = watched_times(runs)
    if times is None:
        return _verdict_of(own, min(own), APART)
    on_gpus = any(map(_on_gpu, runs.values()))
    findings, confidence = resampled(
        len(times),
        lambda steps: (_found(times.take(steps), on_gpus),),
        (_found(times, on_gpus),),
    )
    *doubts, found = findings
    if found is ALIKE:  # the rank that loses most
        most = max(own, key=lambda rank: own[rank].findings[0].lost_share)
        return _verdict_of(own, most, ALL_ALIKE.format(len(own)))
    blamed = times.ranks[int(times.wait.argmax())] if found.rank is None else found.rank
    longer = _longer_line(runs, blamed) if found.name == "straggler" else None
    first = (*map(worded, doubts), _told(found, own[blamed], longer))
    rest = tuple(each for each in own[blamed].findings if each.lost_share)
    by_others = used[blamed] + (cores[blamed].others or 0.0) - together
    crowded = by_others / (runs[blamed].machine.cpu_cores or 1)
    if crowded > limits.DISTURBS:  # alone it need not come out the same
        confidence *= 1 - min(crowded, 1.0)
    verdict = replace(own[blamed], findings=(*first, *rest), confidence=confidence)
    return RanksVerdict(blamed, verdict, own)


def _verdict_of(own: Mapping[int, Diagnosis], rank: int, why: str) -> RanksVerdict:
    """Return the verdict of one rank as that of all, and why."""
    note = f"{why}: this is the verdict of rank {rank}."
    return RanksVerdict(rank, replace(own[rank], notes=(*own[rank].notes, note)), own)


def watched_times(runs: Mapping[int, Run]) -> RankTimes | None:
    """Return where the ranks' steps went; None where they are few, or the ranks not in step.

    `seconds` also has "meeting" (ranks, steps): the time in the kinds of work of `MEETING`, or of
    `ON_GPUS`, NaN where too few stacks were sampled.
    """
    parts = step_parts(runs, limits.MIN_STEPS)
    if parts is None or np.median(np.ptp(parts.end, axis=0)) > np.median(parts.step):
        return None
    computed = np.maximum(parts.end - parts.start, 0)
    others = np.clip(parts.start.max(axis=0) - parts.start, 0, computed)
    seconds = parts.seconds(others, np.zeros_like(others))
    seconds["meeting"] = np.stack([_meeting_s(run)[parts.rows] for run in runs.values()])
    return RankTimes(tuple(runs), seconds, parts.start.argmax(axis=0))


def _meeting_s(run: Run) -> np.ndarray:
    """Return the sampled time of each step (steps,) in which the rank may wait for others, s."""
    lines = run.lines
    if not lines.enough("body"):
        return np.full(run.steps, np.nan)
    meets = lines.mask("body") & _may_wait(run)
    measured_s = _step_ms(run) / 1e3 * (run.steps - run.warmup)
    return np.bincount(lines.step[meets], lines.share[meets] * measured_s, run.steps)


def _may_wait(run: Run) -> np.ndarray:
    """Return which of the sampled stacks are where a rank may wait for others."""
    return np.isin(run.lines.kind, ON_GPUS if _on_gpu(run) else MEETING)


def _on_gpu(run: Run) -> bool:
    return run.machine.kind == "gpu"


def _step_ms(run: Run) -> float:
    return run.step_ms or 0.0


# -- what is found ---------------------------------------------------------------------------------


def _found(times: RankTimes, on_gpus: bool) -> Finding:
    """Return what costs the ranks time; `ALIKE` where nothing sets one of them apart."""
    late = one_is_late(times, "batch was ready", BY_STAMPS)
    lost = float(times.seconds["wait"].max(axis=0).mean() / times.seconds["step"].mean())
    seen = "of the time some rank waits for its batch, and no rank is the late one in most steps"
    some_wait = all_wait(lost, seen, BY_STAMPS)
    worth = worth_naming(late, _one_meets_the_others_late(times, on_gpus), some_wait)
    return worth[0] if worth else ALIKE


def _one_meets_the_others_late(times: RankTimes, on_gpus: bool) -> Finding | None:
    """One rank spends less time than the others where ranks wait for each other."""
    meeting = times.seconds["meeting"].mean(axis=1)
    step = times.seconds["step"].mean(axis=1)
    if np.isnan(meeting).any() or (on_gpus and (meeting < limits.MEETS * step).any()):
        return None
    late = int(meeting.argmin())
    own = float(meeting[late])
    rest = float(np.delete(meeting, late).mean())
    rank = times.ranks[late]
    where = "copies to the device" if on_gpus else "is in backward()"
    waits = f"rank {rank} {where} or reads from the device, where ranks wait for each other, for"
    return slower_rank(
        rank,
        (rest - own) / float(step.mean()),
        Measured("of a step", own * 1e3, "ms", BY_STACKS, waits),
        Measured("", rest * 1e3, "ms", before="the others for"),
    )


# -- why -------------------------------------------------------------------------------------------


def _longer_line(runs: Mapping[int, Run], rank: int) -> Measured | None:
    """Return the line that takes more of a step on one rank than on the others."""
    took = {each: _line_ms(run) for each, run in runs.items()}
    own = took.pop(rank)
    longer_ms = {
        line: ms - fmean(lines.get(line, 0.0) for lines in took.values())
        for line, ms in own.items()
    }
    most = max(longer_ms, key=longer_ms.__getitem__, default="")
    least_ms = limits.WORTH_NAMING["straggler"] / 2 * _step_ms(runs[rank])
    if not most or longer_ms[most] < least_ms:
        return None
    others = "longer in a step than on the other ranks"
    return Measured(others, longer_ms[most], "ms", BY_STACKS, f"{most} takes")


def _line_ms(run: Run) -> dict[str, float]:
    """Return how long each line of the body takes in a step, ms, where no rank waits in it."""
    lines = run.lines
    rows = lines.rows(lines.mask("body") & ~_may_wait(run))
    return {line.what: line.share * _step_ms(run) for line in rows}


def _told(found: Finding, own: Diagnosis, longer: Measured | None) -> WordedFinding:
    """Return a finding in words, with what the rank to blame shows when it is judged alone."""
    at_most = bound(found.lost_share)  # what a rank gains alone is not what all gain
    found = replace(found, at_most=at_most)
    if longer is not None:
        measured = (*found.measured, longer)
        found = replace(found, measured=measured, remedies=(ON_ONE_RANK, *found.remedies))
    found = with_rank(found)
    causes = [each for each in own.findings if each.name == found.name == "input"]
    if not causes:
        return worded(found)
    cause = causes[0]
    joined = replace(
        found,
        cause=cause.cause,
        measured=(*found.measured, *cause.measured[1:]),  # without the share of its own waiting
        remedies=(*cause.remedies, *found.remedies),
        lines=cause.lines,
    )
    return replace(worded(joined), code=cause.code)
