"""How sure a verdict is: by resampling, by what looked inside the device, by who disturbed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from labkit.diagnosis import doubts
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import DEVICE_LIMIT, Finding
from labkit.diagnosis.loop_rules import DOUBLE
from labkit.results.run import Run

# Causes that follow from a busy device: how well its operators work is not measured
CONCLUDED = (DEVICE_LIMIT, DOUBLE)


def resampled(
    rows: int, judge: Callable[[np.ndarray], tuple[Finding, ...]], found: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], float]:
    """Return the findings, after a doubt if too close to call, and the confidence in them."""
    draws = np.random.default_rng(0).integers(0, rows, (limits.RESAMPLES, rows))
    again = Counter((first.name, first.rank) for first in (judge(drawn)[0] for drawn in draws))
    confidence = again[found[0].name, found[0].rank] / limits.RESAMPLES
    if confidence >= limits.MIN_CONFIDENCE:
        return found, confidence
    names = list(dict.fromkeys(name for (name, _rank), _count in again.most_common()))
    return (doubts.too_close(confidence, names), *found), confidence


def trusted(findings: tuple[Finding, ...], evidence: Evidence) -> tuple[tuple[Finding, ...], float]:
    """Return findings that trust a busy device no further than something looked inside.

    With them comes the most confidence that is left.
    """
    first = findings[0]
    concluded = first.cause in CONCLUDED
    if first.name != "compute" and not concluded:
        return findings, limits.UNSEEN if evidence.launches_only else 1.0
    doubt = doubts.of_a_busy_device(evidence)
    if doubt is not None and first.name == "compute":
        return (doubt, *findings), 0.0
    if evidence.looked_inside:
        return findings, 1.0
    if doubt is not None or not evidence.body:
        return findings, limits.UNSEEN
    return findings, limits.LINES_SEEN if concluded else 1.0


def undisturbed(evidence: Evidence, run: Run, seconds: float) -> float:
    """Return how much of the confidence (0 to 1) the `remarks.caveats` leave."""
    left = 1 - min(evidence.crowded_by, 1.0) if evidence.is_disturbed else 1.0
    if evidence.kind == "gpu" and run.on_the_card:
        share = evidence.card.others_share
        left = min(left, limits.UNSEEN if share is None else 1 - share)
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        left *= seconds / limits.LONG_ENOUGH_S
    return left
