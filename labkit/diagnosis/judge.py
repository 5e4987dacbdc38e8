"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from labkit.diagnosis import causes, doubts  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.compute import nothing_lost
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import LOSS, WARNING, Finding, found, not_judged
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
        doubt = worded(doubts.too_short(table.steps))
        return Diagnosis((doubt,), 0.0, source, mark=run.mark)
    evidence = table.evidence()
    first, *_ = findings = by_cost(evidence)
    agree = resampled(table)
    doubt = doubts.against(first, evidence) or doubts.too_close(agree)
    told = [worded(each, evidence, run) for each in (*filter(None, [doubt]), *findings)]
    # Doubts first; what no remedy is expected to make smaller after all that one does
    told.sort(key=lambda each: each.name != "unsure" and not (each.lost_share and each.remedies))
    caveats = doubts.caveats(evidence, run, table.seconds)
    sure = 0.0 if doubt else agree[first.name] / limits.RESAMPLES
    return Diagnosis(
        tuple(told),
        min(sure * min(caveats.values(), default=1.0), most_confidence(first, evidence)),
        source,
        doubts.not_seen(evidence),
        tuple(caveats),
        run.mark,
        not_judged(evidence),
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings = tuple(worded(each, evidence) for each in by_cost(evidence))
    unjudged = not_judged(evidence)
    return Diagnosis(findings, lead(evidence), evidence.source, not_judged=unjudged)


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    found = Finding(known.bottleneck, "published", evidence=known.why, advice=known.missing)
    return Diagnosis((worded(found),), 0.0, known.mark)


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every cause costs, however small, and each bottleneck's loss: causes add up."""
    losing = list(found(evidence, LOSS))
    total: dict[str, float] = defaultdict(float)
    for each in losing:
        total[each.name] += each.lost_share
    return losing, total


def by_cost(evidence: Evidence) -> list[Finding]:
    """Return the losses worth a name, the costliest bottleneck first; `compute` without any."""
    losing, total = losses(evidence)
    limit = limits.WORTH_NAMING
    named = [
        each
        for each in losing
        if total[each.name] >= limit[each.name] and each.lost_share >= limit[each.name] / 2
    ]
    named.sort(key=lambda finding: (-total[finding.name], -finding.lost_share))
    known = {finding.cause for finding in named}
    named += [each for each in found(evidence, WARNING) if each.cause not in known]
    return named or [nothing_lost(evidence, total)]


def resampled(table: StepTable) -> Counter[str]:
    """Return how often which bottleneck comes first where the steps are drawn anew."""
    draws = np.random.default_rng(0).integers(0, table.rows, (limits.RESAMPLES, table.rows))
    return Counter(by_cost(table.evidence(drawn))[0].name for drawn in draws)


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
    if first.lost_share or evidence.known("xray") or evidence.known("kernels"):
        return 1.0
    return limits.LINES_SEEN if evidence.body else limits.UNSEEN
