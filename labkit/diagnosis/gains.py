"""Which remedies a finding has for a run, and what the first should bring a bench's pipeline."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis.estimate import Estimate
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, gain_without
from labkit.diagnosis.prediction import WORTH, predict
from labkit.diagnosis.remedies import Remedy
from labkit.results.run import Run


def with_gains(finding: Finding, evidence: Evidence, run: Run | None) -> Finding:
    """Return a finding with its remedies filled in for a run, and what the first should bring.

    That is known of a bench's own pipeline alone, by simulation: a remedy that is sure to gain goes
    before the others, and one that would gain no more than noise is left out. Of a user's loop the
    most is known that batches which are ready would bring.
    """
    filled = (remedy.for_run(evidence, rank=finding.rank) for remedy in finding.remedies)
    found = [(remedy, _gain(remedy, finding, evidence, run)) for remedy in filled if remedy]
    kept = [(remedy, gain) for remedy, gain in found if gain is None or gain.value > 1 + WORTH]
    kept.sort(key=lambda each: each[1] is None or each[1].low <= 1)  # the sure ones in front
    most = _most(finding, evidence)
    if most is not None and most <= 1 + WORTH:
        kept = []  # the loader does not hold this loop back
    return replace(
        finding,
        remedies=tuple(remedy for remedy, _ in kept),
        expected=kept[0][1] if kept else None,
        at_most=finding.at_most if most is None else min(finding.at_most or most, most),
    )


def _most(finding: Finding, evidence: Evidence) -> float | None:
    """Return the gain of batches that are ready, for a user's loop; None where nothing bounds it.

    Replay leaves out the start of a pass, for which workers that start anew make a loop wait.
    Workers that have a CPU's cores make its steps longer, too.
    """
    if finding.name != "input" or evidence.code is None or not finding.lost_share:
        return None
    if evidence.headroom is not None and finding.cause != "workers_restart":
        return evidence.headroom
    beside = evidence.kind == "cpu" and evidence.num_workers
    return None if beside else gain_without(finding.lost_share)


def _gain(remedy: Remedy, finding: Finding, evidence: Evidence, run: Run | None) -> Estimate | None:
    """Return the gain of a remedy's settings; None where nothing simulates it."""
    changes = remedy.changes
    if not changes or run is None or run.watched or not run.throughput:
        return None
    found = predict(run, **changes).estimate
    gain = found and found.times(1 / run.throughput)
    count = changes.get("num_workers")
    fewer = count is not None and int(count) < (evidence.num_workers or 0)
    if gain is None or finding.name != "input" or fewer:  # these give a CPU's model its cores back
        return gain
    most = 1 / max(evidence.compute_share, 0.01)  # of a loader for which the device never waits
    return gain.no_more_than(Estimate(most, most, most))
