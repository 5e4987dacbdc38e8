"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from labkit.diagnosis import cause, causes, doubts  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.compute import DOUBLE, nothing_lost
from labkit.diagnosis.causes.script import of_the_whole
from labkit.diagnosis.efficiency import with_low_mfu
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import DEVICE_LIMIT, NEIGHBOUR, Finding, Measured, Remedy
from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.trace_evidence import of_trace, of_traces
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.run_data import RunData
from labkit.results.watched_pipeline import BODY_NOTE
from labkit.traces.public import PublicTrace
from labkit.traces.read import Breakdown, RankTraces

# Causes that follow from a busy device: how well its operators work is not measured
CONCLUDED = (DEVICE_LIMIT, DOUBLE)


def of_run(run: RunData, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run; other ranks of the same job used `ranks_cores` meanwhile."""
    source = where_measured(run)
    unseen = (BODY_NOTE,) if run.watched and not lines_of(run).body else ()
    table = StepTable(run, ranks_cores)
    short = doubts.too_short(table.steps)
    if short:
        return Diagnosis((worded(short),), 0.0, source, unseen, mark=run.mark)
    evidence = table.evidence()
    findings = by_cost(evidence)
    confidence = 0.0
    withheld = doubts.device_shared(evidence, findings[0], losses(evidence)[1])
    withheld = withheld or doubts.contradiction(evidence)
    if withheld:
        findings = (withheld, *(f for f in findings if f.name != "compute" or f.lost_share))
    else:
        findings, confidence = resampled(
            table.rows, lambda rows: by_cost(table.evidence(rows)), findings
        )
    findings, most = trusted(with_low_mfu(run, evidence, findings), evidence)
    return Diagnosis(
        helpful_first(tuple(worded(each, evidence, run) for each in findings)),
        min(confidence * doubts.undisturbed(evidence, run, table.seconds), most),
        source,
        (*unseen, *doubts.not_seen(evidence)),
        doubts.caveats(evidence, run, table.seconds),
        cause.not_judged(evidence),
        of_pipeline=evidence.loop is None,
        mark=run.mark,
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings, most = trusted(by_cost(evidence), evidence)
    told = tuple(worded(each, evidence) for each in findings)
    confidence = min(lead(evidence), most)
    unseen = tuple(doubts.not_seen(evidence))
    unjudged = cause.not_judged(evidence)
    return Diagnosis(told, confidence, traced.source, unseen, not_judged=unjudged)


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    missing = (Remedy("fetch_the_trace", known.missing),)
    seen = (Measured(known.why.rstrip(".")),)
    found = Finding(known.bottleneck, "published", measured=seen, remedies=missing)
    return Diagnosis((worded(found),), 0.0, known.mark)


def where_measured(run: RunData) -> str:
    """Say where a run was measured."""
    return run.mark or f"measured on {run.machine.name}"


# -- which loss comes first ------------------------------------------------------------------------


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every cause costs, however small, and each bottleneck's loss: causes add up."""
    found = of_the_whole(_each_once(list(cause.found(evidence))), evidence)
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def _each_once(found: list[Finding]) -> list[Finding]:
    """Take what a neighbour makes of the launches' time out of what else tells of launches."""
    launches = [finding for finding in found if finding.name == "launch"]
    lost = sum(f.lost_share for f in launches if f.cause == NEIGHBOUR)
    total = sum(f.lost_share for f in launches) - lost
    if not lost or total <= 0:
        return found
    left = max(total - lost, 0.0) / total
    return [
        replace(finding, lost_share=finding.lost_share * left)
        if finding.name == "launch" and finding.cause != NEIGHBOUR
        else finding
        for finding in found
    ]


def by_cost(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    found, total = losses(evidence)
    limit = limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    shown = {name: sum(f.lost_share for f in named if f.name == name) for name in total}
    named.sort(key=lambda finding: (-shown[finding.name], -finding.lost_share))
    known = {finding.cause for finding in named}
    named += [each for each in cause.found(evidence, cause.WARNING) if each.cause not in known]
    named[:0] = cause.found(evidence, cause.FIRST)
    verdict = tuple(named) or (nothing_lost(evidence, total),)
    return (*verdict, *cause.found(evidence, cause.LAST))


def helpful_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put a loss that no remedy is expected to make smaller after one that a remedy does."""
    first, *rest = findings
    if first.remedies or not first.lost_share:
        return findings
    helped = next((each for each in rest if each.remedies and each.lost_share), None)
    return findings if helped is None else (helped, *(f for f in findings if f is not helped))


# -- how sure that is ------------------------------------------------------------------------------


def lead(evidence: Evidence) -> float:
    """Return how far the first loss is ahead of the second and of its threshold, 0 to 1."""
    _, total = losses(evidence)
    nearest = max(loss / limits.WORTH_NAMING[name] for name, loss in total.items())
    if nearest < 1:
        return 1 - nearest
    first, *rest = sorted(total.values(), reverse=True)
    return 1 - max([1 / nearest, *(loss / first for loss in rest[:1])])


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
    if evidence.xray or evidence.kernels or evidence.trace:  # something looked inside
        return findings, 1.0
    if doubt is not None or not evidence.body:
        return findings, limits.UNSEEN
    return findings, limits.LINES_SEEN if concluded else 1.0
