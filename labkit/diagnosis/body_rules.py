"""Rules for what the samples show of a loop's body besides training."""

from __future__ import annotations

from functools import partial

import numpy as np

from labkit.bench.stack import is_users
from labkit.diagnosis import body_remedies as cures
from labkit.diagnosis.body_cost import (
    copying_s,
    lost_in_part,
    lost_to_copies,
    lost_to_own_update,
    may_work_in,
)
from labkit.diagnosis.copy_remedies import FEWER_BYTES_OVER, NOT_WAITED_FOR, PINNED, bytes_first
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, bound
from labkit.diagnosis.hot_lines import Lines
from labkit.diagnosis.line_work import LongSteps, long_steps, work_of
from labkit.diagnosis.loop_rules import drift_of
from labkit.diagnosis.remedies import Remedy

WAITING = "waiting: for a sleep, a lock, a network or another program"
BESIDES = {  # what a body does besides training, by the part of it; and what helps
    "python": ("Python", cures.VECTORISE),
    "logging": ("logging and files", cures.LOG_RARELY),
    "waiting": (WAITING, cures.WAIT_ELSEWHERE),
}


def sampled_by(lines: Lines, evidence: Evidence) -> str:
    """Say by what a loop's body was measured."""
    return f"{lines.samples} sampled stacks, {evidence.source}"


def in_which(steps: LongSteps) -> str:
    """Return which steps are long, in words: "in every 10th step"."""
    every = steps.every
    if every is None:
        return f"in {steps.count} single steps"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(every % 10, "th")
    ending = "th" if every % 100 in (11, 12, 13) else ending
    return f"in every {every}{ending} step"


def of_the_time(is_bound: bool) -> str:
    """Say of what a share of a body's time is: a GPU may work under it."""
    if not is_bound:
        return "of the time"
    return "of the time, at most, is lost: while the device may work on what is queued,"


def in_the_body(evidence: Evidence, part: str) -> Finding | None:
    """The body of a watched loop does something besides training: a `part` of `BESIDES`.

    Cause: the part, "python", "logging" or "waiting"; "periodic" where IN_LONG_STEPS of it fall
    into few or regular steps of LONG ordinary ones. It costs its share
    of the sampled stacks, as far as the device does not work meanwhile.
    """
    loop = evidence.loop
    if loop is None or part not in evidence.body:
        return None
    lost = lost_in_part(evidence, part)
    drift = drift_of(evidence)
    if drift and drift.share > lost / 2 and (loop.lines.of_part(part) & drift.mask).any():
        return None  # it is what makes the steps longer and longer: said there
    work = work_of(loop.lines, part, loop.spent)
    words, remedy = BESIDES[part]
    if work.lines and work.lines[0].kind == "collect":
        remedy = cures.COLLECT_RARELY
    hidden = may_work_in(evidence, part)
    seen = f"{of_the_time(hidden)} the body of the loop is not training but {words}"
    measured = [Measured(seen, lost, by=sampled_by(loop.lines, evidence))]
    when = f", {in_which(work.long_steps)}" if work.long_steps else ""
    if work.lines:
        measured.append(Measured(f"of the body is in {work.lines[0].what}{when}", work.share))
    return Finding(
        "host",
        work.cause,
        lost,
        tuple(measured),
        (remedy,),
        lines=work.lines,
        at_most=bound(lost),
        is_bound=hidden,
    )


IN_THE_BODY = tuple(partial(in_the_body, part=part) for part in BESIDES)


def copies_in_the_body(evidence: Evidence) -> Finding | None:
    """The host stands at a copy to a GPU, in a watched loop.

    Cause "copies". A copy that blocks also waits for what the device has queued. Where the device's
    times are known, that time is no loss. Where they are not, few bytes move meanwhile: found only
    where the batches move at COPIES_BYTES_S or more. It costs the share of the stacks at the copy.
    Fewer bytes are the first remedy where what pinned memory could hide is shorter.
    """
    loop = evidence.loop
    lost = lost_to_copies(evidence)
    if loop is None or not lost:
        return None
    lines = loop.lines
    worst = lines.worst(lines.mask("body") & (lines.kind == "copy"))
    seen = f"of the time the host waits for the copy of a batch to the device, in {worst[0].what}"
    moved = evidence.batch.bytes or 0.0
    gb_s = moved / copying_s(evidence) / 1e9
    rate = f"the batches' {moved / 2**20:.0f} MiB move at {gb_s:.1f} GB/s"
    remedies = (PINNED, NOT_WAITED_FOR, FEWER_BYTES_OVER)
    if bytes_first(evidence, lost):
        remedies = (FEWER_BYTES_OVER,)  # pinned memory would make such a loop slower
    return Finding(
        "transfer",
        "copies",
        lost,
        (Measured(seen, lost, by=sampled_by(lines, evidence)), Measured(rate)),
        remedies,
        lines=worst,
        at_most=bound(lost),
    )


def another_loader(evidence: Evidence) -> Finding | None:
    """The loop's body waits for another DataLoader, which it reads beside its own.

    Cause "loader", unless that falls into long steps at even distances: a validation is counted in
    the whole time. It costs its share of the sampled stacks.
    """
    loop = evidence.loop
    lost = lost_in_part(evidence, "loader")
    if loop is None or not lost:
        return None
    lines = loop.lines
    mask = lines.of_part("loader")
    when = long_steps(lines, mask, loop.spent)
    if when and when.every:
        return None  # `script_rules.beside_training`
    readers = lines.around(mask, "reads")
    costliest = lines.worst(mask)[:1]
    hidden = may_work_in(evidence, "loader")
    seen = f"{of_the_time(hidden)} the body of the loop waits for another DataLoader"
    measured = [Measured(seen, lost, by=sampled_by(lines, evidence))]
    whole = float(lines.share[mask].sum())
    if readers:
        read = f"of that is for the one that is read in {readers[0].what}"
        measured.append(Measured(read, readers[0].share / whole))
    if costliest and costliest[0].call:
        measured.append(Measured(f"of it is in {costliest[0].what}", costliest[0].share / whole))
    return Finding(
        "host",
        "loader",
        lost,
        tuple(measured),
        (_remedy(lines, mask),),
        lines=(*readers[:1], *costliest),
        at_most=bound(lost),
        is_bound=hidden,
    )


def _remedy(lines: Lines, mask: np.ndarray) -> Remedy:
    """Return what helps against another loader in the body, by where its batches are prepared."""
    here = [line for line in lines.rows(mask & (lines.within != "")) if is_users(line.file)]
    feeds = sum(line.share for line in here) >= lines.share[mask].sum() / 2
    return cures.FEED_THE_OTHER if feeds else cures.KEEP_THE_OTHER_LOADER


def own_optimizer(evidence: Evidence) -> Finding | None:
    """The loop's body updates the weights one by one, in the user's own code.

    Cause "own_optimizer", where the update takes OWN_UPDATE of the body's stacks or more, and is no
    `torch._foreach_*`. It costs that share.
    """
    loop = evidence.loop
    lost = lost_to_own_update(evidence)
    if loop is None or not lost:
        return None
    lines = loop.lines
    body = lines.mask("body")
    worst = lines.worst(body & (lines.kind == "update"))
    part = worst[0].share / float(lines.share[body].sum())
    seen = "of the time the weights are updated by code of your own, one after the other"
    return Finding(
        "host",
        "own_optimizer",
        lost,
        (
            Measured(seen, lost, by=sampled_by(lines, evidence)),
            Measured(f"of the body is in {worst[0].what}", part),
        ),
        (cures.ALL_WEIGHTS_AT_ONCE,),
        lines=worst,
    )
