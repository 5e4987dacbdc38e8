"""Why is the device idle, and what do I change: `diagnose(run)` gives one answer with evidence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labkit.diagnosis import doubts, ranking
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.efficiency import with_low_mfu
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import DEVICE_LIMIT, Finding, Measured, WordedFinding
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.gather import StepTable
from labkit.diagnosis.loop_rules import DOUBLE
from labkit.diagnosis.public_traces import PublicTrace
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.trace import Breakdown, RankTraces, trace
from labkit.diagnosis.trace_evidence import of_trace, of_traces
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.process.events import FILE_NAME
from labkit.results.event_log import of_one_moment
from labkit.results.library import Loaded, load
from labkit.results.measurements import Measurements
from labkit.results.ranks import Ranks
from labkit.results.record import RecordError
from labkit.results.run import Run
from labkit.results.text import listed
from labkit.results.watched_pipeline import BODY_NOTE

# Causes that follow from a busy device: how well its operators work is not measured
CONCLUDED = (DEVICE_LIMIT, DOUBLE)


def diagnose(
    what: Loaded | Breakdown | RankTraces | PublicTrace | str | os.PathLike[str],
) -> Diagnosis:
    """Name the bottleneck of a Run, Ranks, a record's path (.jsonl, .jsonl.gz or a run's folder).

    Or of a torch.profiler trace (.json, .json.gz), a folder or archive of one for each rank, or
    what `lk.trace` or `lk.public_trace` made of them. Raises RecordError or TraceError (both are a
    ValueError) on one that cannot be used.
    """
    if isinstance(what, (str, os.PathLike)):
        path = Path(what)
        is_record = path.name.endswith((".jsonl", ".jsonl.gz")) or (path / FILE_NAME).exists()
        return diagnose(load(path) if is_record else trace(path))
    if isinstance(what, (Breakdown, RankTraces)):
        return of_traced(what)
    if isinstance(what, PublicTrace):
        return of_published(what)
    if isinstance(what, Ranks):
        return what.diagnose()
    if isinstance(what, Measurements):
        raise RecordError(
            f"{what.path}: a measured function has rows and no training steps, so there "
            "is nothing to diagnose: lk.load(path) shows its numbers; diagnose a training run."
        )
    return of_run(what)


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings, most = _trusted(ranking.by_cost(evidence), evidence)
    told = tuple(_told(each, evidence) for each in findings)
    confidence = min(ranking.lead(evidence), most)
    return Diagnosis(told, confidence, traced.source, tuple(_not_seen(evidence)))


def of_published(known: PublicTrace) -> Diagnosis:
    """Return what others found in a trace that could not be read."""
    missing = (Remedy("fetch_the_trace", known.missing),)
    seen = (Measured(known.why.rstrip(".")),)
    found = Finding(known.bottleneck, "published", measured=seen, remedies=missing)
    return Diagnosis((worded(found),), 0.0, known.mark)


@of_one_moment
def of_run(run: Run, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run, beside which other ranks of the same job used so many cores."""
    source = source_of(run)
    unseen = (BODY_NOTE,) if run.watched and not run.lines.body else ()
    table = StepTable(run, ranks_cores)
    short = doubts.too_short(table.steps)
    if short:
        return Diagnosis((worded(short),), 0.0, source, unseen, mark=run.mark)
    evidence = table.evidence()
    findings = ranking.by_cost(evidence)
    confidence = 0.0
    withheld = doubts.device_shared(evidence, bool(run.watched), findings[0])
    withheld = withheld or doubts.contradiction(evidence)
    if withheld:
        findings = (withheld, *(f for f in findings if f.name != "compute" or f.lost_share))
    else:
        findings, confidence = resampled(
            table.rows, lambda rows: ranking.by_cost(table.evidence(rows)), findings
        )
    findings, most = _trusted(with_low_mfu(run, evidence, findings), evidence)
    told = tuple(_told(each, evidence, run) for each in findings)
    return Diagnosis(
        _helpful_first(told),
        min(confidence * _undisturbed(evidence, run, table.seconds), most),
        source,
        (*unseen, *_not_seen(evidence)),
        _caveats(evidence, run, table.seconds),
        of_pipeline=evidence.loop is None,
        mark=run.mark,
    )


def source_of(run: Run | Ranks) -> str:
    """Say where a run or ranks were measured."""
    return run.mark or f"measured on {run.machine.name}"


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


def _caveats(evidence: Evidence, run: Run, seconds: float) -> tuple[str, ...]:
    """Say what else had a part in a run's times, of which so many seconds were measured."""
    caveats = []
    if evidence.is_disturbed:
        taken = f"had the model's core for {evidence.stolen_by_others:.0%} of the time"
        use = evidence.use
        if use.others_share > limits.DISTURBS:
            named = f": {listed(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        caveats.append(f"Other programs {taken}.")
    if evidence.kind == "gpu" and run.on_the_card:
        caveats.append(f"Other programs were on the same GPU: {listed(run.on_the_card)}.")
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        caveats.append(f"A short look: {longer}")
    return tuple(caveats)


def _undisturbed(evidence: Evidence, run: Run, seconds: float) -> float:
    """Return how much of the confidence (0 to 1) the `_caveats` leave."""
    left = 1 - min(evidence.crowded_by, 1.0) if evidence.is_disturbed else 1.0
    if evidence.kind == "gpu" and run.on_the_card:
        share = evidence.card.others_share
        left = min(left, limits.UNSEEN if share is None else 1 - share)
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        left *= seconds / limits.LONG_ENOUGH_S
    return left


def _not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    if evidence.could_look and not evidence.looked_inside:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif evidence.xray and evidence.kind == "gpu" and evidence.kernels is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes


def _trusted(
    findings: tuple[Finding, ...], evidence: Evidence
) -> tuple[tuple[Finding, ...], float]:
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
    if evidence.looked_inside:
        return findings, 1.0
    if doubt is not None or not evidence.body:
        return findings, limits.UNSEEN
    return findings, limits.LINES_SEEN if concluded else 1.0


def _helpful_first(findings: tuple[WordedFinding, ...]) -> tuple[WordedFinding, ...]:
    """Put a loss that no remedy is expected to make smaller after one that a remedy does."""
    first, *rest = findings
    if first.remedies or not first.lost_share:
        return findings
    helped = next((each for each in rest if each.remedies and each.lost_share), None)
    return findings if helped is None else (helped, *(f for f in findings if f is not helped))


def _told(finding: Finding, evidence: Evidence, run: Run | None = None) -> WordedFinding:
    """Return a finding with what its remedies should bring, in words."""
    return worded(with_gains(finding, evidence, run), evidence)
