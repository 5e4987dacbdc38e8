"""The verdict on a profiler's trace: from its own times, or as others published it."""

from __future__ import annotations

from labkit.diagnosis import ranking
from labkit.diagnosis.confidence import trusted
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.remarks import not_seen
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.trace_evidence import of_trace, of_traces
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.traces.public import PublicTrace
from labkit.traces.read import Breakdown, RankTraces


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings, most = trusted(ranking.by_cost(evidence), evidence)
    told = tuple(worded(with_gains(each, evidence, None), evidence) for each in findings)
    confidence = min(ranking.lead(evidence), most)
    return Diagnosis(told, confidence, traced.source, tuple(not_seen(evidence)))


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    missing = (Remedy("fetch_the_trace", known.missing),)
    seen = (Measured(known.why.rstrip(".")),)
    found = Finding(known.bottleneck, "published", measured=seen, remedies=missing)
    return Diagnosis((worded(found),), 0.0, known.mark)
