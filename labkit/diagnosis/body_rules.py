"""Rules for what the samples show of a loop's body besides training."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from labkit.diagnosis import body_remedies as cures
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.body_cost import (
    copying_s,
    in_loops,
    lost_in_body,
    lost_in_loops,
    lost_in_part,
    lost_to_copies,
    may_work,
)
from labkit.diagnosis.copy_remedies import FEWER_BYTES_OVER, NOT_WAITED_FOR, PINNED, bytes_first
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, bound, gain_without
from labkit.diagnosis.hot_lines import Line, Lines
from labkit.diagnosis.line_work import PERIODIC, LongSteps, long_steps, work_of
from labkit.diagnosis.loop_rules import drift_of
from labkit.diagnosis.script_rules import beside_training

WAITING = "waiting: for a sleep, a lock, a network or another program"
BESIDES = {  # what a body does besides training, by the part of it; and what helps
    "python": ("Python", cures.VECTORISE),
    "logging": ("logging and files", cures.LOG_RARELY),
    "waiting": (WAITING, cures.WAIT_ELSEWHERE),
    "loader": ("waiting for another DataLoader", cures.FEED_THE_OTHER),
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

    Cause: the part, as "python", "logging" or "loader"; "periodic" where IN_LONG_STEPS of it fall
    into few or regular steps of LONG ordinary ones. It costs its share of the sampled stacks, as
    far as the device does not work meanwhile.
    """
    loop = evidence.loop
    if loop is None or part not in evidence.body:
        return None
    lost = lost_in_part(evidence, part)
    drift = drift_of(evidence)
    if drift and drift.share > lost / 2 and (loop.lines.of_part(part) & drift.mask).any():
        return None  # it is what makes the steps longer and longer: said there
    there = in_loops(evidence)
    of_part = loop.lines.of_part(part)
    if there is not None and (of_part & there).sum() > of_part.sum() / 2:
        return None  # said by `one_by_one`
    work = work_of(loop.lines, part, loop.spent)
    if work.cause == PERIODIC and part == "loader" and beside_training(evidence):
        return None  # a validation, which counts in the whole time
    words, remedy = BESIDES[part]
    hidden = may_work(evidence)
    seen = f"{of_the_time(hidden)} the body of the loop is not training but {words}"
    measured = [Measured(seen, lost, by=sampled_by(loop.lines, evidence))]
    when = f", {in_which(work.long_steps)}" if work.long_steps else ""
    if work.lines:
        measured.append(Measured(f"of the body is in {work.lines[0].what}{when}", work.share))
    readers = loop.lines.around(of_part, "site")[:1] if part == "loader" else ()
    if readers:
        measured.append(Measured(f"that loader is read in {readers[0].what}"))
    return Finding(
        "host",
        work.cause,
        lost,
        tuple(measured),
        (remedy,),
        lines=(*readers, *work.lines),
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


def one_by_one(evidence: Evidence) -> Finding | None:
    """A loop within the step runs operators one by one: over samples, time steps, classes, weights.

    Cause "one_by_one", where that takes PART_OF_BODY of the body or more. It costs that share; the
    backward pass of these operators comes on top.
    """
    there = in_loops(evidence)
    loop = evidence.loop
    lost = lost_in_loops(evidence)
    if loop is None or there is None or not lost:
        return None
    lines = loop.lines
    when = long_steps(lines, there, loop.spent)
    if when and when.every:
        return None  # a validation's batches, or a picture: no part of each step
    rows = lines.rows(there)[:3]
    inner = next(place.inner for place in lines.places_of(there) if place.inner)
    part = rows[0].share / float(lines.share[lines.mask("body")].sum())
    header = Line(*inner[:3], share=rows[0].share, phase="body", kind="loop", call=inner.text)
    often = f", {inner.turns} times in each step" if inner.turns else ""
    seen = f"of the time is in loops inside the step, most in {header.what}{often}"
    over_weights = re.search("param|weight|grad", inner.text + rows[0].call)
    return Finding(
        "launch",
        "one_by_one",
        lost,
        (
            Measured(seen, lost, by=sampled_by(lines, evidence)),
            Measured(f"of the body is in {rows[0].what}", part),
        ),
        (cures.ALL_WEIGHTS_AT_ONCE if over_weights else cures.ALL_AT_ONCE,),
        lines=rows,
    )


def costly_line(evidence: Evidence) -> Finding | None:
    """A single line of the body's tensor operations stands out, beside the model and its update.

    Cause "line", where it takes PART_OF_BODY of the body or more on a CPU; a GPU computes it at
    another time than its host issues it. It costs its share of the stacks, at most.
    """
    loop = evidence.loop
    if loop is None or evidence.kind != "cpu" or not loop.lines.enough("body"):
        return None
    lines = loop.lines
    there = in_loops(evidence)
    beside = lines.mask("body") & np.isin(lines.kind, ("torch", "copy", "sync"))
    rows = lines.rows(beside if there is None else beside & ~there)
    part = rows[0].share / float(lines.share[lines.mask("body")].sum()) if rows else 0.0
    if part < limits.PART_OF_BODY:
        return None
    lost = lost_in_body(evidence, part)
    seen = f"of the time is in {rows[0].what}, which is not the model, its backward pass or update"
    return Finding(
        "compute",
        "line",
        lost,
        (Measured(seen, lost, by=sampled_by(lines, evidence)),),
        (cures.CHEAPER_LINE,),
        lines=rows[:3],
        at_most=gain_without(lost),
        is_bound=True,
    )
