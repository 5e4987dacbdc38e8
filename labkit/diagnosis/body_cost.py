"""What the work in a watched loop's body may cost: nothing where the device works all the same."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.watched_loop import HOST_ALONE


def lost_in_body(evidence: Evidence, share: float) -> float:
    """Return what a share of the body may cost: nothing while the device works all the same."""
    if evidence.card.may_never_rest:
        return 0.0
    return min(share * evidence.compute_share, max(1 - evidence.card.certain_share, 0.0))


def lost_in_part(evidence: Evidence, part: str) -> float:
    """Return what a part of the body may cost."""
    return lost_in_body(evidence, evidence.body.get(part, 0.0))


def host_alone_share(evidence: Evidence) -> float:
    """Return the share of a body in which the host gives the device nothing to do."""
    return sum(evidence.body.get(part, 0.0) for part in HOST_ALONE)


def share_of_body(evidence: Evidence, kind: str) -> float:
    """Return the share of a body in a kind of work; 0 with too few samples."""
    if evidence.loop is None or not evidence.loop.lines.enough("body"):
        return 0.0
    lines = evidence.loop.lines
    body = lines.mask("body")
    of_kind = body & (lines.kind == kind)
    return float(lines.share[of_kind].sum() / lines.share[body].sum())


def copying_share(evidence: Evidence) -> float:
    """Return the share of time that the host stands at a copy to a GPU whose queue is empty."""
    if evidence.kind != "gpu" or not evidence.compute_share:
        return 0.0
    # What had been issued in full is done while the host waits for its batch, then at the copy
    behind_the_queue = max(evidence.card.ahead_share - evidence.host_wait_share, 0.0)
    copies = share_of_body(evidence, "copy") * (1 - evidence.host_wait_share)
    return max(copies - behind_the_queue, 0.0)


def copying_s(evidence: Evidence) -> float:
    """Return the time of the average step, s, in the `copying_share`."""
    compute_s = (evidence.compute_us or 0.0) / 1e6
    return copying_share(evidence) / max(evidence.compute_share, 1e-9) * compute_s


def lost_to_copies(evidence: Evidence) -> float:
    """Return what copies in the body may cost: 0 where too few bytes move meanwhile."""
    share = copying_share(evidence)
    if not share or (evidence.batch.bytes or 0.0) < limits.COPIES_BYTES_S * copying_s(evidence):
        return 0.0
    return min(share, lost_in_body(evidence, share_of_body(evidence, "copy")))


def in_loops(evidence: Evidence) -> np.ndarray | None:
    """Return the mask of the samples in a loop within the step that runs operators one by one.

    None where it takes less than PART_OF_BODY of the body.
    """
    if evidence.loop is None or not evidence.loop.lines.enough("body"):
        return None
    lines = evidence.loop.lines
    there = lines.in_loops()
    part = lines.share[there].sum() / max(lines.share[lines.mask("body")].sum(), 1e-9)
    return there if part >= limits.PART_OF_BODY else None


def lost_in_loops(evidence: Evidence) -> float:
    """Return what a loop within the step may cost that runs operators one by one."""
    there = in_loops(evidence)
    if there is None or evidence.loop is None:
        return 0.0
    lines = evidence.loop.lines
    return lost_in_body(
        evidence, float(lines.share[there].sum() / lines.share[lines.mask("body")].sum())
    )


def may_work(evidence: Evidence) -> bool:
    """Return whether a GPU may work on what is queued while the host does something else.

    The host waits for it later on. So the time of that bounds what it costs, and that may be
    nothing.
    """
    if evidence.kind != "gpu" or evidence.loop is None:
        return False
    return evidence.loop.waits >= limits.WAITS_FOR_DEVICE
