"""What a finding's remedies should bring, from the one estimator: the simulation of the loader."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding
from labkit.diagnosis.prediction import WORTH, Estimate, predict
from labkit.diagnosis.remedies import Remedy
from labkit.results.run import Run


def with_gains(finding: Finding, evidence: Evidence, run: Run | None) -> Finding:
    """Return a finding with its remedies filled in for a run, and what the first should bring.

    A remedy that is sure to gain goes before the others; one that would gain no more than noise is
    left out. None promises more than the measured headroom, where there is one.
    """
    ceiling = _ceiling(finding, evidence)
    sure = []
    others = []
    for remedy in finding.remedies:
        filled = remedy.for_run(evidence, rank=finding.rank)
        if filled is None:
            continue
        gain = _gain(filled, finding, evidence, run)
        if gain is not None and ceiling is not None:
            gain = gain.no_more_than(ceiling)
        if gain is not None and gain.value <= 1 + WORTH:
            continue
        (sure if gain is not None and gain.low > 1 else others).append((filled, gain))
    kept = sure + others
    expected = kept[0][1] if kept else None
    at_most = finding.at_most
    if ceiling is not None:
        at_most = min(at_most or ceiling.value, ceiling.value)
    remedies = tuple(remedy for remedy, _ in kept)
    return replace(finding, remedies=remedies, expected=expected, at_most=at_most)


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
    advised = evidence.advised
    if not changes:
        return None
    now = evidence.num_workers or 0
    count = int(changes.get("num_workers") or 0) if "num_workers" in changes else now
    fewer = count < now  # that also gives a model on the CPU its cores back
    if advised is not None and "num_workers" in changes and count == advised.num_workers:
        return advised.gain if fewer else _within_the_device(advised.gain, evidence)
    if run is None or run.watched or not run.throughput:
        return None
    found = predict(run, **changes).estimate
    if found is None:
        return None
    gain = found.times(1 / run.throughput)
    fed = finding.name == "input" and not fewer
    return _within_the_device(gain, evidence) if fed else gain


def _within_the_device(gain: Estimate, evidence: Evidence) -> Estimate:
    """Return a gain no larger than that of a loader for which the device never waits."""
    most = 1 / max(evidence.compute_share, 0.01)
    return gain.no_more_than(Estimate(most, most, most))
