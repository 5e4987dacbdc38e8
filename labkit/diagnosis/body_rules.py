"""Rules for what a loop's body is sampled in: another DataLoader, the user's own optimizer."""

from __future__ import annotations

import numpy as np

from labkit.bench.stack import is_users
from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, bound
from labkit.diagnosis.hot_lines import Lines
from labkit.diagnosis.loop_body import Stalls, stalls
from labkit.diagnosis.loop_rules import sampled_by
from labkit.diagnosis.remedies import Remedy


def another_loader(evidence: Evidence) -> Finding | None:
    """The loop's body waits for a DataLoader of its own: of a validation, or read beside."""
    loop = evidence.loop
    lost = evidence.lost_in_body(evidence.body.get("loader", 0.0))
    if loop is None or not lost:
        return None
    lines = loop.lines
    mask = lines.of_part("loader")
    when = stalls(loop, mask)
    readers = lines.readers(mask)
    costliest = lines.worst(mask)[:1]
    seen = "of the time the body of the loop waits for another DataLoader"
    measured = [Measured(seen, lost, by=sampled_by(lines, evidence))]
    whole = float(lines.share[mask].sum())
    if readers:
        read = f"of that is for the one that is read in {readers[0].what}"
        read += f", {when}" if when else ""
        measured.append(Measured(read, readers[0].share / whole))
    if costliest and costliest[0].call:
        measured.append(Measured(f"of it is in {costliest[0].what}", costliest[0].share / whole))
    return Finding(
        name="host",
        cause="periodic" if when and when.every else "loader",
        lost_share=lost,
        measured=tuple(measured),
        remedies=(_remedy(lines, mask, when),),
        lines=(*readers[:1], *costliest),
        at_most=bound(lost),
    )


def _remedy(lines: Lines, mask: np.ndarray, when: Stalls | None) -> Remedy:
    """Return what helps against another loader in the body, by where its batches are prepared."""
    here = [line for line in lines.rows(mask & (lines.within != "")) if is_users(line.file)]
    feeds = sum(line.share for line in here) >= lines.share[mask].sum() / 2
    if when:
        return cures.FEED_OR_VALIDATE_LESS if feeds else cures.VALIDATE_LESS
    return cures.FEED_THE_OTHER if feeds else cures.FASTER_OTHER


def own_optimizer(evidence: Evidence) -> Finding | None:
    """The loop's body updates the weights one by one, in the user's own code."""
    loop = evidence.loop
    if loop is None or not loop.lines.enough("body"):
        return None
    lines = loop.lines
    body = lines.mask("body")
    mask = body & (lines.kind == "update")
    whole = float(lines.share[body].sum())
    share = float(lines.share[mask].sum()) / whole
    if share < limits.OWN_UPDATE or "_foreach_" in lines.rows(mask)[0].call:
        return None
    lost = evidence.lost_in_body(share)
    worst = lines.worst(mask)
    seen = "of the time the weights are updated by code of your own, one after the other"
    return Finding(
        name="host",
        cause="own_optimizer",
        lost_share=lost,
        measured=(
            Measured(seen, lost, by=sampled_by(lines, evidence)),
            Measured(f"of the body is in {worst[0].what}", worst[0].share / whole),
        ),
        remedies=(cures.ALL_WEIGHTS_AT_ONCE,),
        lines=worst,
    )
