"""What a finding's remedies should bring, from the one estimator: the simulation of the loader."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.loader_words import shares_stream
from labkit.diagnosis.prediction import WORTH, predict
from labkit.diagnosis.remedies import Remedy
from labkit.results.run import Run


def with_gains(finding: Finding, evidence: Evidence, run: Run | None) -> Finding:
    """Return a finding with its remedies filled in for a run, and what the first should bring.

    A remedy that is sure to gain goes before the others; one that would gain no more than noise is
    left out. None promises more than the measured headroom, where there is one.
    """
    ceiling = _ceiling(finding, evidence)
    kept: list[tuple[Remedy, Estimate | None]] = []
    for remedy in finding.remedies:
        filled = remedy.for_run(evidence, rank=finding.rank)
        if filled is None:
            continue
        gain = _gain(filled, finding, evidence, run)
        if gain is not None and ceiling is not None:
            gain = gain.no_more_than(ceiling)
        if gain is None or gain.value > 1 + WORTH:
            kept.append((filled, gain))
    kept.sort(key=lambda each: each[1] is None or each[1].low <= 1)  # the sure ones in front
    at_most = finding.at_most
    if ceiling is not None:
        at_most = min(at_most or ceiling.value, ceiling.value)
    return replace(
        finding,
        remedies=tuple(remedy for remedy, _ in kept),
        expected=kept[0][1] if kept else None,
        at_most=at_most,
    )


def _ceiling(finding: Finding, evidence: Evidence) -> Estimate | None:
    """Return the gain of a perfect loader; None where it was not measured, or bounds nothing here.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    """
    bounded = finding.name == "input" and finding.cause != "workers_restart"
    return evidence.headroom if bounded else None


def _gain(remedy: Remedy, finding: Finding, evidence: Evidence, run: Run | None) -> Estimate | None:
    """Return the gain of a remedy's settings; None where nothing tells it."""
    if remedy.expects is not None:
        return remedy.expects(evidence)
    changes = remedy.changes
    if not changes:
        return None
    count = changes.get("num_workers")
    if count and shares_stream(evidence):
        return None  # the user's code has to share it out
    fewer = count is not None and int(count) < (evidence.num_workers or 0)
    gain = None
    if evidence.advised is not None and count == evidence.advised.num_workers:
        gain = evidence.advised.gain
    elif run is not None and not run.watched and run.throughput:
        found = predict(run, **changes).estimate
        gain = found and found.times(1 / run.throughput)
    if gain is None or finding.name != "input" or fewer:  # these give a CPU's model its cores back
        return gain
    most = 1 / max(evidence.compute_share, 0.01)  # of a loader for which the device never waits
    return gain.no_more_than(Estimate(most, most, most))
