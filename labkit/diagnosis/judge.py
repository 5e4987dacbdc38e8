"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from labkit.diagnosis import cause, causes, doubts  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.around import of_the_whole
from labkit.diagnosis.causes.compute import nothing_lost
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import CONCLUDED, Finding, Measured, Remedy
from labkit.diagnosis.hot_lines import lines_of
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.trace_evidence import of_trace, of_traces
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.run_data import RunData
from labkit.results.watched_pipeline import BODY_NOTE
from labkit.traces.public import PublicTrace
from labkit.traces.read import Breakdown, RankTraces


def of_run(run: RunData, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run; other ranks of the same job used `ranks_cores` meanwhile."""
    source = run.mark or f"measured on {run.machine.name}"
    unseen = (BODY_NOTE,) if run.watched and not lines_of(run).body else ()
    table = StepTable(run, ranks_cores)
    short = doubts.too_short(table.steps)
    if short:
        return Diagnosis((worded(short),), 0.0, source, unseen, mark=run.mark)
    evidence = table.evidence()
    findings = by_cost(evidence)
    most = most_confidence(findings[0], evidence)
    doubt = doubts.against(findings[0], evidence)
    if doubt is not None:
        findings, confidence = (doubt, *findings), 0.0
    else:
        findings, confidence = resampled(
            table.rows, lambda rows: by_cost(table.evidence(rows)), findings
        )
    caveats = doubts.caveats(evidence, run, table.seconds)
    return Diagnosis(
        helpful_first(tuple(worded(each, evidence, run) for each in findings)),
        min(confidence * min(caveats.values(), default=1.0), most),
        source,
        (*unseen, *doubts.not_seen(evidence)),
        tuple(caveats),
        cause.not_judged(evidence),
        of_pipeline=evidence.of_bench,
        mark=run.mark,
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings = tuple(worded(each, evidence) for each in by_cost(evidence))
    unseen = tuple(doubts.not_seen(evidence))
    unjudged = cause.not_judged(evidence)
    return Diagnosis(findings, lead(evidence), traced.source, unseen, not_judged=unjudged)


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    missing = (Remedy("fetch_the_trace", known.missing),)
    seen = (Measured(known.why.rstrip(".")),)
    found = Finding(known.bottleneck, "published", measured=seen, remedies=missing)
    return Diagnosis((worded(found),), 0.0, known.mark)


# -- which loss comes first ------------------------------------------------------------------------


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every cause costs, however small, and each bottleneck's loss: causes add up."""
    found = of_the_whole(list(cause.found(evidence)), evidence)
    total: dict[str, float] = {}
    for finding in found:
        total[finding.name] = total.get(finding.name, 0.0) + finding.lost_share
    return found, total


def by_cost(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    found, total = losses(evidence)
    limit = limits.WORTH_NAMING
    named = [f for f in found if total[f.name] >= limit[f.name]]
    named = [f for f in named if f.lost_share >= limit[f.name] / 2] or named
    named.sort(key=lambda finding: (-total[finding.name], -finding.lost_share))
    known = {finding.cause for finding in named}
    named += [each for each in cause.found(evidence, cause.WARNING) if each.cause not in known]
    named[:0] = cause.found(evidence, cause.FIRST)
    return tuple(named or [nothing_lost(evidence, total)])


def helpful_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put a loss that no remedy is expected to make smaller after one that a remedy does."""
    first, *rest = findings
    helped = [each for each in rest if each.remedies and each.lost_share]
    if first.remedies or not first.lost_share or not helped:
        return findings
    return (helped[0], *(f for f in findings if f is not helped[0]))


# -- how sure that is ------------------------------------------------------------------------------


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


def lead(evidence: Evidence) -> float:
    """Return how far a trace's first loss is ahead of the next, or of its threshold, 0 to 1."""
    _, total = losses(evidence)
    times = [loss / limits.WORTH_NAMING[name] for name, loss in total.items()]
    *_, second, first = sorted([1.0, *times])
    return 1 - second / first


def most_confidence(first: Finding, evidence: Evidence) -> float:
    """Return the most confidence in a verdict: a device is trusted where something saw it."""
    if evidence.launches_only:
        return limits.UNSEEN
    if first.cause not in CONCLUDED or evidence.xray or evidence.kernels:
        return 1.0
    return limits.LINES_SEEN if evidence.body else limits.UNSEEN
