"""Why a watched loop waits for data, by its lines: where nothing else tells."""

from __future__ import annotations

from labkit.diagnosis import loader_remedies as feeding
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, late_batches
from labkit.diagnosis.line_work import COLLATE


def costly_lines(evidence: Evidence) -> Finding | None:
    """Most of the loader's work is in one place.

    Cause "collate", where the collate function takes MOST_OF_LOADING of it; "item", where a line of
    preparing items, or a few, do.
    """
    found = evidence.loop.loading if evidence.loop else None
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
