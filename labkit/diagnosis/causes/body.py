"""What the samples show of a watched loop's body besides training, and how its steps grow."""

from __future__ import annotations

from functools import partial

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import WARNING, cause
from labkit.diagnosis.causes.copies import lost_in_body, sampled_by
from labkit.diagnosis.causes.script import beside_training
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import Finding, Measured, Remedy, bound, explains, gain_without
from labkit.diagnosis.hot_lines import Line, Lines
from labkit.diagnosis.watched_loop import Drift


def rarely(key: str, text: str) -> Remedy:
    """Return a remedy of words for a line of the body."""
    return Remedy(key, text, "lines")


VECTORISE = rarely(
    "vectorise",
    "Vectorise it, do it in tensor operations, or take it out of the loop. What prepares a batch "
    "belongs in the dataset or in collate_fn, where the loader's workers do it.",
)
LOG_RARELY = rarely(
    "log_rarely",
    "Do it in every 50th step or less, buffered and without fsync, or in a thread of its own.",
)
WAIT_ELSEWHERE = rarely("wait_elsewhere", "Do it in a thread of its own, or between epochs.")
FEED_THE_OTHER = Remedy(
    "feed_the_other",
    "Make that DataLoader once, outside the loop, with workers of its own: num_workers=2 to begin "
    "with, and persistent_workers=True. Or read it less often: a validation every few epochs.",
    "workers",
    cost="a process with its memory for each worker, and their start",
)
WAITING = "waiting: for a sleep, a lock, a network or another program"
BESIDES = {  # what a body does besides training, by the part of it; and what helps
    "python": ("Python", VECTORISE),
    "logging": ("logging and files", LOG_RARELY),
    "waiting": (WAITING, WAIT_ELSEWHERE),
    "loader": ("waiting for another DataLoader", FEED_THE_OTHER),
}


def long_steps(lines: Lines, mask: np.ndarray, spent: np.ndarray) -> str:
    """Say which steps are long for the masked samples' work: "every 10 steps"; "" where none.

    `spent` (steps,) is how long each body took, s.
    """
    step = lines.step[mask]
    share = lines.share[mask]
    long = spent[step] > limits.LONG * np.median(spent)
    steps = np.unique(step[long])
    if share[long].sum() < limits.IN_LONG_STEPS * share.sum() or len(steps) < 2:
        return ""
    gaps = np.diff(steps)
    every = int(np.median(gaps))
    missed = np.abs(gaps - every * np.round(gaps / every)) <= 1  # some may have had no sample
    if len(gaps) > 1 and every > 2 and missed.mean() >= limits.REGULAR:
        return f"every {every} steps"
    is_seldom = len(steps) <= limits.FEW_LONG_STEPS * len(spent)
    return f"in {len(steps)} single steps" if is_seldom else ""


explains("periodic", "periodic")


def in_the_body(evidence: Evidence, part: str) -> Finding | None:
    """The body of a watched loop does something besides training: a `part` of `BESIDES`.

    Cause: the part, as "python", "logging" or "loader"; "periodic" where IN_LONG_STEPS of it fall
    into few or regular steps of LONG ordinary ones. It costs its share of the sampled stacks; on a
    GPU, which may work meanwhile on what is queued, at most that.
    """
    lines = evidence.loop.lines
    if part not in evidence.body:
        return None
    lost = lost_in_body(evidence, evidence.body[part])
    of_part = lines.of_part(part)
    drift = drift_of(evidence)
    if drift and drift.share > lost / 2 and (of_part & drift.mask).any():
        return None  # it is what makes the steps longer and longer: said there
    when = long_steps(lines, of_part, evidence.loop.spent)
    if when and part == "loader" and asked(beside_training, evidence):
        return None  # a validation, which counts in the whole time
    words, remedy = BESIDES[part]
    is_bound = evidence.kind == "gpu"
    of_time = "of the time"
    if is_bound:
        of_time += ", at most, is lost: while the device may work on what is queued,"
    seen = f"{of_time} the body of the loop is not training but {words}"
    measured = [Measured(seen, lost, by=sampled_by(evidence))]
    shown = lines.rows(of_part)[:3]
    if shown:
        there = f"of the body is in {shown[0].what}" + (f", {when}" if when else "")
        measured.append(Measured(there, shown[0].share / lines.whole("body")))
    if shown and shown[0].site and part == "loader":
        file, number, function = shown[0].site
        site = Line(file, number, function, shown[0].share, "body", part)
        measured.append(Measured(f"that loader is read in {site.what}"))
        shown = (site, *shown)
    return Finding(
        "host",
        "periodic" if when else part,
        lost,
        tuple(measured),
        (remedy,),
        lines=shown,
        at_most=bound(lost),
        is_bound=is_bound,
    )


for _part in BESIDES:
    cause("loop-body", _part)(partial(in_the_body, part=_part))


CHEAPER_LINE = rarely(
    "cheaper_line",
    "Do what this line does less often, on less data or in a cheaper way; leave it out for a few "
    "steps to see what it costs.",
)


@cause("loop-body", "line")
def costly_line(evidence: Evidence) -> Finding | None:
    """A single line of the body's tensor operations stands out, beside the model and its update.

    It is found where that takes PART_OF_BODY of the body or more on a CPU; a GPU computes it at
    another time than its host issues it. It costs its share of the stacks, at most.
    """
    lines = evidence.loop.lines
    if evidence.kind != "cpu":
        return None
    rows = lines.rows(lines.in_body & np.isin(lines.kind, ("torch", "copy", "sync")))
    part = rows[0].share / lines.whole("body") if rows else 0.0
    if part < limits.PART_OF_BODY:
        return None
    lost = lost_in_body(evidence, part)
    seen = f"of the time is in {rows[0].what}, which is not the model, its backward pass or update"
    return Finding(
        "compute",
        "line",
        lost,
        (Measured(seen, lost, by=sampled_by(evidence)),),
        (CHEAPER_LINE,),
        lines=rows[:3],
        at_most=gain_without(lost),
        is_bound=True,
    )


# -- steps that grow, and what is kept -------------------------------------------------------------

KEEP_LESS = rarely(
    "keep_less",
    "Something is kept from step to step, such as a list that grows: empty it now and then, or "
    "memory runs out some time.",
)
WATCH_SIZES = rarely(
    "watch_sizes",
    "Look at that line: print every 100th step's time beside the sizes of what it works on. They "
    "grow where something is collected, and may grow on purpose (longer texts, larger images).",
)
KEEP_NUMBERS = rarely(
    "keep_numbers",
    "Keep numbers instead of tensors with the graphs that made them: add loss.item(), append "
    "loss.detach(); and call backward() on the loss of this step alone.",
)


def drift_of(evidence: Evidence) -> Drift | None:
    """Return how a watched loop's steps grow; None where the machine may have slowed instead."""
    drift = evidence.loop.drift
    if drift is None or kept(evidence) is not None:
        return drift
    is_alone = evidence.growth.known("late_gib") is None and drift.growth < limits.DRIFT_ALONE
    return None if is_alone or evidence.crowded_by > limits.DISTURBS else drift


@cause("growth", "drift")
def longer_and_longer(evidence: Evidence) -> Finding | None:
    """A watched loop's steps take longer and longer.

    It is found where the last fifth of the steps takes DRIFT times the first; DRIFT_ALONE times
    where neither memory nor a variable was seen to grow. Batches that grow as much explain it, and
    so may other programs. It costs what the later steps take beyond the first.
    """
    drift = drift_of(evidence)
    if drift is None:
        return None
    grown = kept(evidence)
    lines = evidence.loop.lines.rows(drift.mask)[:3]
    before = "the last steps take"
    measured = [
        Measured("as long as the first", drift.growth, "times", evidence.source, before=before),
        *(Measured(f"what grows is {line.what}") for line in lines[:1]),
        *(grown.measured if grown else _risen(evidence)),
    ]
    remedies = grown.remedies if grown else (WATCH_SIZES,)
    lines = (grown.lines if grown else ()) + lines
    return Finding("host", "drift", drift.share, tuple(measured), remedies, lines)


def _risen(evidence: Evidence) -> list[Measured]:
    """Return the memory that rose, in words; none where it did not."""
    growth = evidence.growth
    if growth.known("late_gib") is None:
        return []
    held = f"{growth.early_gib:.2g} to {growth.late_gib:.2g} GiB"
    return [Measured(f"the program's memory rose from {held}")]


@cause("growth", when=WARNING)
def kept(evidence: Evidence) -> Finding | None:
    """Something grows from step to step: it may cost no time, but ends in want of memory.

    Cause "drift", where a variable grows that holds graphs of tensors, or BLAMED of the memory that
    the program gained.
    """
    growth = evidence.growth
    risen = _risen(evidence)
    gained = growth.late_gib - growth.early_gib if risen else 0.0
    least = limits.BLAMED * gained * 2**30  # bytes that explain why the memory rose
    graphs = [each for each in growth.variables if each["graph"]]
    large = [each for each in growth.variables if risen and (each.get("bytes") or 0) >= least]
    if not graphs and not large:
        return None
    line = max(graphs or large, key=lambda each: (each.get("bytes") or 0, each["after"]))
    name = line["name"]
    where = Line(line["file"], line["line"], line["function"], 0.0, "body", "python", name)
    seen = f"`{name}` in {where.address} grew from {line['before']} to {line['after']} while the "
    measured = [Measured(f"{seen}loop was watched"), *risen]
    if graphs:
        measured.append(Measured("it keeps tensors with the graphs that made them"))
    remedy = KEEP_NUMBERS if graphs else KEEP_LESS
    return Finding("host", "drift", measured=tuple(measured), remedies=(remedy,), lines=(where,))
