"""Why a watched loop waits for data, by its passes and lines: where its workers were not timed.

Each rule looks for one cause in the `Loop`; the first of `PASS_RULES` that finds its own speaks. It
costs the loop's waiting for data, which `idle_rules.waiting_for_data` fills in.
"""

from __future__ import annotations

from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis import worker_remedies as cures
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, late_batches
from labkit.diagnosis.hot_lines import WORKER
from labkit.diagnosis.line_work import COLLATE, loading_mask
from labkit.diagnosis.watched_loop import Loop


def workers_start_anew(evidence: Evidence, loop: Loop) -> Finding | None:
    """The first batch of every later pass waits for workers that start anew.

    Cause "workers_restart", where the loop waits for these first batches, beyond what it waits for
    an ordinary one, for half of its waiting or longer.
    """
    if not loop.restart or loop.restart < evidence.wait_share / 2:
        return None
    seen = (
        f"of the time goes to the first batches of {loop.passes - 1} later passes, for which the "
        "workers start anew"
    )
    return late_batches(
        "workers_restart",
        Measured(seen, loop.restart),
        remedies=(cures.PERSISTENT, cures.LONGER_PASSES, *feeding.FEED),
        lines=loop.lines.worst(loop.lines.mask("waiting"))[:1],
    )


def slow_first_pass(evidence: Evidence, loop: Loop) -> Finding | None:
    """The first pass is slower than the later ones: the page cache was cold.

    Cause "cold_start", where a step of it took COLD times one of the later passes, and what it took
    longer is half of the waiting or more.
    """
    if not loop.cold or loop.cold < evidence.wait_share / 2:
        return None
    lines = loop.lines
    early = (lines.step < loop.first_pass) | (lines.phase == WORKER)
    return late_batches(
        "cold_start",
        Measured("of the time is what the first pass took longer than the later ones", loop.cold),
        remedies=(cures.READ_ONCE, *feeding.FEED),
        lines=lines.worst(loading_mask(lines) & early)[:1],
    )


def costly_lines(evidence: Evidence, loop: Loop) -> Finding | None:
    """Most of the loader's work is in one place.

    Cause "collate", where the collate function takes MOST_OF_LOADING of it; "item", where a line of
    preparing items, or a few, do.
    """
    found = loop.loading
    if found is None:
        return None
    seen = "of preparing an item is"
    cure = feeding.CHEAPER_LINE
    if found.cause == COLLATE:
        seen = "of what the loader does is collating:"
        cure = feeding.LEANER_COLLATE
    return late_batches(
        found.cause,
        Measured(f"{seen} {found.lines[0].what}", found.share),
        remedies=(cure, *feeding.FEED),
        lines=found.lines,
    )


PASS_RULES = (workers_start_anew, slow_first_pass, costly_lines)


def why_passes_are_slow(evidence: Evidence) -> Finding | None:
    """Return the cause that a watched loop's passes and lines show; None where they show none."""
    loop = evidence.loop
    if loop is None:
        return None
    found = (rule(evidence, loop) for rule in PASS_RULES)
    return next(filter(None, found), None)
