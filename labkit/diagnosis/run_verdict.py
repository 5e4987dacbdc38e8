"""The verdict on one run: what the rules find in it, unless a doubt stands before it."""

from __future__ import annotations

from labkit.diagnosis import doubts, ranking
from labkit.diagnosis.confidence import resampled, trusted, undisturbed
from labkit.diagnosis.efficiency import with_low_mfu
from labkit.diagnosis.gains import with_gains
from labkit.diagnosis.known_calls import known_first
from labkit.diagnosis.remarks import caveats, not_seen
from labkit.diagnosis.step_table import StepTable
from labkit.diagnosis.verdict import Diagnosis
from labkit.diagnosis.wording import worded
from labkit.results.event_log import of_one_moment
from labkit.results.ranks import Ranks
from labkit.results.run import Run
from labkit.results.watched_pipeline import BODY_NOTE


@of_one_moment
def of_run(run: Run, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run; other ranks of the same job used `ranks_cores` meanwhile."""
    source = where_measured(run)
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
    findings, most = trusted(with_low_mfu(run, evidence, findings), evidence)
    gained = tuple(with_gains(each, evidence, run) for each in findings)
    if evidence.loop is not None:
        gained = tuple(map(known_first, gained))
    return Diagnosis(
        tuple(worded(each, evidence) for each in ranking.helpful_first(gained)),
        min(confidence * undisturbed(evidence, run, table.seconds), most),
        source,
        (*unseen, *not_seen(evidence)),
        caveats(evidence, run, table.seconds),
        of_pipeline=evidence.loop is None,
        mark=run.mark,
    )


def where_measured(run: Run | Ranks) -> str:
    """Say where a run or ranks were measured."""
    return run.mark or f"measured on {run.machine.name}"
