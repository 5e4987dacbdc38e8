"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from labkit.diagnosis import cause, causes, doubts  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.around import of_the_whole
from labkit.diagnosis.causes.compute import nothing_lost
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import CONCLUDED, Finding, Measured, Remedy
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.trace_evidence import of_trace, of_traces
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.run_data import RunData
from labkit.traces.public import PublicTrace
from labkit.traces.read import Breakdown, RankTraces


def of_run(run: RunData, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run; other ranks of the same job used `ranks_cores` meanwhile."""
    source = run.mark or f"measured on {run.machine.name}"
    table = StepTable(run, ranks_cores)
    if table.steps < limits.MIN_STEPS:
        return Diagnosis((worded(doubts.too_short(table.steps)),), 0.0, source, mark=run.mark)
    evidence = table.evidence()
    findings = by_cost(evidence)
    most = most_confidence(findings[0], evidence)
    doubt, confidence = doubts.against(findings[0], evidence), 0.0
    if doubt is None:
        agree = resampled(table)
        confidence = agree[findings[0].name, findings[0].rank] / limits.RESAMPLES
        if confidence < limits.MIN_CONFIDENCE:
            names = list(dict.fromkeys(name for (name, _), _ in agree.most_common()))
            doubt = doubts.too_close(confidence, names)
    caveats = doubts.caveats(evidence, run, table.seconds)
    told = (doubt, *findings) if doubt else findings
    return Diagnosis(
        helpful_first([worded(each, evidence, run) for each in told]),
        min(confidence * min(caveats.values(), default=1.0), most),
        source,
        tuple(doubts.not_seen(evidence)),
        tuple(caveats),
        cause.not_judged(evidence),
        of_pipeline=evidence.of_bench,
        mark=run.mark,
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings = tuple(worded(each, evidence) for each in by_cost(evidence))
    notes, unjudged = tuple(doubts.not_seen(evidence)), cause.not_judged(evidence)
    return Diagnosis(findings, lead(evidence), traced.source, notes, not_judged=unjudged)


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    missing = (Remedy("fetch_the_trace", known.missing),)
    seen = (Measured(known.why.rstrip(".")),)
    found = Finding(known.bottleneck, "published", measured=seen, remedies=missing)
    return Diagnosis((worded(found),), 0.0, known.mark)


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


def helpful_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Put a loss that no remedy is expected to make smaller after one that a remedy does."""
    losing = [each for each in findings if each.lost_share]
    helped = [each for each in losing if each.remedies]
    if losing[:1] == findings[:1] and helped and not findings[0].remedies:
        findings = [helped[0], *(each for each in findings if each is not helped[0])]
    return tuple(findings)


def resampled(table: StepTable) -> Counter[tuple[str, int | None]]:
    """Return how often which bottleneck comes first where the steps are drawn anew."""
    draws = np.random.default_rng(0).integers(0, table.rows, (limits.RESAMPLES, table.rows))
    again = (by_cost(table.evidence(drawn))[0] for drawn in draws)
    return Counter((first.name, first.rank) for first in again)


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
    if first.cause not in CONCLUDED or evidence.known("xray") or evidence.known("kernels"):
        return 1.0
    return limits.LINES_SEEN if evidence.body else limits.UNSEEN
