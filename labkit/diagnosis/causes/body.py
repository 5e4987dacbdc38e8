"""What the samples show of a watched loop's body besides training, and how its steps grow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import WARNING, cause
from labkit.diagnosis.causes.copies import lost_in_body, sampled_by
from labkit.diagnosis.evidence import Evidence, asked
from labkit.diagnosis.findings import Finding, Measured, Remedy, bound, explains, loss
from labkit.diagnosis.hot_lines import Line

VECTORISE = Remedy(
    "vectorise",
    "Vectorise it, do it in tensor operations, or take it out of the loop. What prepares a batch "
    "belongs in the dataset or in collate_fn, where the loader's workers do it.",
    "lines",
)
LOG_RARELY = Remedy(
    "log_rarely",
    "Do it in every 50th step or less, buffered and without fsync, or in a thread of its own.",
    "lines",
)
WAIT_ELSEWHERE = Remedy(
    "wait_elsewhere", "Do it in a thread of its own, or between epochs.", "lines"
)
FEED_THE_OTHER = Remedy(
    "feed_the_other",
    "Make that DataLoader once, outside the loop, with workers of its own: num_workers=2 to begin "
    "with, and persistent_workers=True. Or read it less often: a validation every few epochs.",
    "workers",
    cost="a process with its memory for each worker, and their start",
)
BESIDES = {  # what a body does besides training, by the part of it; and what helps
    "python": ("Python", VECTORISE),
    "logging": ("logging and files", LOG_RARELY),
    "waiting": ("waiting: for a sleep, a lock, a network or another program", WAIT_ELSEWHERE),
    "loader": ("waiting for another DataLoader", FEED_THE_OTHER),
}


def period(steps: np.ndarray, share: np.ndarray, spent: np.ndarray) -> int | None:
    """Return how many steps lie between the long ones; None where these do not come regularly.

    Of a kind of work `steps` (samples,) is when it was sampled, `share` what each sample stands
    for; `spent` (steps,) s is how long each body took.
    """
    long = np.flatnonzero(spent > limits.LONG * np.median(spent))
    if len(long) < 2 or share[np.isin(steps, long)].sum() < limits.IN_LONG_STEPS * share.sum():
        return None
    gaps = np.diff(long)
    every = int(np.median(gaps))
    is_regular = (np.abs(gaps - every) <= 1).mean() >= limits.REGULAR
    return every if every > 2 and is_regular else None


explains("periodic", "periodic")


def in_the_body(evidence: Evidence, part: str) -> Finding | None:
    """The body of a watched loop does something besides training: a `part` of `BESIDES`.

    Cause: the part, as "python", "logging" or "loader"; "periodic" where most of it falls into
    regular long steps. It costs its share of the sampled stacks; on a GPU, which may work meanwhile
    on what is queued, at most that.
    """
    loop = evidence.loop
    if part not in evidence.body:
        return None
    lost = lost_in_body(evidence, evidence.body[part])
    drift = asked(longer_and_longer, evidence)
    if drift and drift.lost_share > lost / 2:
        return None  # it is what makes the steps longer and longer: said there
    mask = loop.lines.mask("body", part)
    there = loop.lines.frame[mask]
    every = period(there.step.to_numpy(), there.share.to_numpy(), loop.spent)
    words, remedy = BESIDES[part]
    seen = f"of the time the body of the loop is not training but {words}"
    rows = loop.lines.rows(mask)[:3]
    seen += f", most of it in {rows[0].what}" + (f", every {every} steps" if every else "")
    return loss(
        "host",
        "periodic" if every else part,
        lost,
        seen,
        remedy,
        by=sampled_by(evidence),
        lines=rows,
        at_most=bound(lost),
        is_bound=evidence.kind == "gpu",
    )


for _part in BESIDES:
    cause("loop-body", _part)(partial(in_the_body, part=_part))


# -- steps that grow, and what is kept -------------------------------------------------------------

KEEP_LESS = Remedy(
    "keep_less",
    "Print every 100th step's time beside the sizes of what that line works on. Something may be "
    "kept from step to step, such as a list: empty it now and then, or memory runs out some time. "
    "Longer texts and larger images may grow on purpose.",
    "lines",
)
KEEP_NUMBERS = Remedy(
    "keep_numbers",
    "Keep numbers instead of tensors with the graphs that made them: add loss.item(), append "
    "loss.detach(); and call backward() on the loss of this step alone.",
    "lines",
)


@cause("growth", "drift")
def longer_and_longer(evidence: Evidence) -> Finding | None:
    """A watched loop's steps take longer and longer.

    It is found where the last fifth of the steps takes DRIFT times the first; DRIFT_ALONE times
    where neither memory nor a variable was seen to grow, and no other program DISTURBS the loop.
    Batches that grow as much explain it. It costs what the later steps take beyond the first.
    """
    drift, lines = evidence.loop.drift, evidence.loop.lines
    if drift is None:
        return None
    grown = asked(kept, evidence)
    if grown is None:
        has_risen = evidence.growth.known("late_gib") is not None
        least = limits.DRIFT if has_risen else limits.DRIFT_ALONE
        if drift.growth < least or evidence.crowded_by > limits.DISTURBS:
            return None
        grown = Finding("host", "drift", remedies=(KEEP_LESS,))
    before = "the last steps take"
    seen = Measured("as long as the first", drift.growth, "times", evidence.source, before=before)
    measured, rows = (seen, *grown.measured), grown.lines + lines.rows(lines.mask("body"))[:3]
    return replace(grown, lost_share=drift.share, measured=measured, lines=rows)


@cause("growth", when=WARNING)
def kept(evidence: Evidence) -> Finding | None:
    """Something grows from step to step: it may cost no time, but ends in want of memory.

    Cause "drift", where a variable grows that holds graphs of tensors, or BLAMED of the memory that
    the program gained.
    """
    growth = evidence.growth
    risen = growth.known("late_gib") is not None
    least = limits.BLAMED * (growth.late_gib - growth.early_gib) * 2**30 if risen else np.inf
    blamed = [
        each for each in growth.variables if each["graph"] or (each.get("bytes") or 0) >= least
    ]
    if not blamed:
        return None
    variable = max(blamed, key=lambda each: (each["graph"], each.get("bytes") or 0, each["after"]))
    name = variable["name"]
    line = Line(
        variable["file"], variable["line"], variable["function"], 0.0, "body", "python", name
    )
    seen = f"`{name}` in {line.address} grew from {variable['before']} to {variable['after']}"
    if risen:
        seen += f", the program's memory rose to {growth.late_gib:.2g} GiB"
    if variable["graph"]:
        seen += ", and it keeps tensors with the graphs that made them"
    remedy = KEEP_NUMBERS if variable["graph"] else KEEP_LESS
    return Finding("host", "drift", 0.0, (Measured(seen),), (remedy,), (line,))
