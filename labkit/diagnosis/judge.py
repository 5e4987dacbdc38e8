"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from labkit.diagnosis import causes  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.device import nothing_lost
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    LOOK_INSIDE,
    LOSS,
    WARNING,
    Diagnosis,
    Finding,
    findings_of,
    not_judged,
)
from labkit.diagnosis.step_table import StepTable, of_trace, of_traces
from labkit.diagnosis.wording import with_advice
from labkit.results.run_data import RunData
from labkit.traces.read import Breakdown, RankTraces

# Causes that workers seem to have which only lack a core
OF_SLOW_WORKERS = ("cores", "too_few_workers", "waiting_for_data", "stalls")
BESIDE_TRAINING = ("validation", "between_epochs")  # causes of "host" outside the training loop
STOP_OTHERS = "Stop the other work and run again."
TO_THE_CARD = (
    "The model is on the CPU, and does not use the {}: move it there before its optimizer is "
    "made, and each batch in the loop. If torch sees no device, `labkit machine` says why."
)
HEADROOM = "Ask lk.headroom(loader), which waits for the device, what a better loader would bring."


def of_run(run: RunData, ranks_cores: float = 0.0) -> Diagnosis:
    """Diagnose one run; other ranks of the same job used `ranks_cores` meanwhile."""
    source = run.mark or f"measured on {run.machine.name}"
    table = StepTable(run, ranks_cores)
    if table.steps < limits.MIN_STEPS:
        doubt = with_advice(too_short(table.steps))
        return Diagnosis(findings=(doubt,), source=source, mark=run.mark)
    evidence = table.evidence()
    findings = [with_advice(each, evidence, run) for each in by_cost(evidence)]
    findings.sort(key=lambda each: not each.is_reducible)
    first, hidden = findings[0], blind_spot(evidence)
    agreement = bootstrap(table, findings)
    doubt = objection(first, evidence) or too_close(first, agreement)
    limited = caveats(evidence, run)
    sure = agreement * min(limited.values(), default=1.0)
    return Diagnosis(
        findings=(with_advice(doubt), *findings) if doubt else tuple(findings),
        confidence=0.0 if doubt else min(sure, most_confidence(first, evidence)),
        source=source,
        notes=(hidden.evidence,) if hidden else (),
        caveats=tuple(limited),
        mark=run.mark,
        not_judged=not_judged(evidence),
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings = tuple(with_advice(each, evidence) for each in by_cost(evidence))
    return Diagnosis(
        findings=findings,
        confidence=lead(findings[0], losses(evidence)[1]),
        source=evidence.source,
        not_judged=not_judged(evidence),
    )


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every cause costs, however small, and each bottleneck's loss: causes add up.

    Where a script does much beside its training, what the others cost is a share of the rest.
    """
    losing = list(findings_of(LOSS, evidence))
    rest = 1 - sum(each.lost_share for each in losing if each.cause in BESIDE_TRAINING)
    total: dict[str, float] = defaultdict(float)
    for place, each in enumerate(losing):
        if each.cause not in BESIDE_TRAINING:
            losing[place] = replace(each, lost_share=each.lost_share * rest)
        total[each.name] += losing[place].lost_share
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
    costs = {finding.cause: finding.lost_share for finding in losing}
    for each in findings_of(WARNING, evidence):
        if each.cause not in known:
            named.append(replace(each, lost_share=costs.get(each.cause, each.lost_share)))
    return named or [nothing_lost(evidence, total)]


def bootstrap(table: StepTable, findings: list[Finding]) -> float:
    """Return in which share of resampled runs the first bottleneck of these findings comes first.

    There, too, those come last that no remedy can reduce.
    """
    reducible = {each.name for each in findings if each.is_reducible}
    last = {each.name for each in findings} - reducible
    drawn = limits.RESAMPLES, min(table.steps, limits.MOST_DRAWN)
    draws = np.random.default_rng(0).integers(0, table.steps, drawn)
    resampled = (by_cost(table.evidence(rows)) for rows in draws)
    firsts = [min(each, key=lambda finding: finding.name in last).name for each in resampled]
    return firsts.count(findings[0].name) / limits.RESAMPLES


def lead(first: Finding, total: Mapping[str, float]) -> float:
    """Return how far the first finding is ahead of the next, or of its threshold, 0 to 1.

    `total` are the losses of each bottleneck; to lose no more than each threshold is to `compute`.
    """
    times = {name: loss / limits.WORTH_NAMING[name] for name, loss in total.items()}
    times["compute"] = 1.0
    ahead = times.pop(first.name)
    return max(1 - max(times.values()) / ahead, 0.0)


def most_confidence(first: Finding, evidence: Evidence) -> float:
    """Return the most confidence in a verdict: a device is trusted where something saw it."""
    is_told = first.lost_share or evidence.known("xray") or evidence.known("kernels")
    return 1.0 if is_told and not evidence.launches_only else limits.UNSEEN


# -- why there is no verdict -----------------------------------------------------------------------


def unsure(cause: str, evidence: str, advice: str, page: str = "symptoms/no-verdict.md") -> Finding:
    """Return a finding that says why there is no verdict, and what to do for one."""
    return Finding("unsure", page, cause, evidence=evidence, advice=advice)


def too_short(steps: int) -> Finding:
    """Too few steps were measured."""
    seen = f"{steps} steps were measured after the warm-up; a verdict needs {limits.MIN_STEPS}."
    return unsure("too_short", seen, "Run longer (more steps).")


def too_close(first: Finding, agreement: float) -> Finding | None:
    """Too small a share of the resampled runs agrees with the first finding."""
    if agreement >= limits.MIN_CONFIDENCE:
        return None
    seen = f"{agreement:.0%} of resampled runs say {first.name}, the others something else."
    return unsure("too_close_to_call", seen, "Run longer (more steps), on a quiet machine.")


def objection(first: Finding, evidence: Evidence) -> Finding | None:
    """Return why the first finding is no verdict; None where it is one."""
    on_card, of_cores = evidence.known("others_on_card") or 0.0, taken_by_others(first, evidence)
    shared = {
        "of the time kernels of other processes ran on the same GPU": on_card,
        "of the time in which this program had work, others had its cores": of_cores,
    }
    for what, share in shared.items():
        if share > limits.FOREIGN_LOAD:
            seen = f"{share:.0%} {what} (threshold {limits.FOREIGN_LOAD:.0%})."
            return unsure("neighbour", seen, STOP_OTHERS, "symptoms/neighbour.md")
    return blind_spot(evidence) if first.name == "compute" else None


def taken_by_others(first: Finding, evidence: Evidence) -> float:
    """Return the share of time in which others had the cores, where that speaks against a finding.

    What makes all of a program slower in proportion leaves its lines and their shares as they are.
    But it starves loader workers, which is then no fault of theirs; and a CPU that others use is
    not the limit.
    """
    taken = evidence.stolen_by_others
    starved = evidence.num_workers and first.cause in OF_SLOW_WORKERS and first.lost_share <= taken
    is_limit = evidence.kind == "cpu" and not first.lost_share
    return taken if starved or is_limit or first.cause == "cold_start" else 0.0


def blind_spot(evidence: Evidence) -> Finding | None:
    """Nothing saw whether the device works, where it seems to be the limit."""
    if evidence.launches_only:
        seen = "The device was not timed: it may work while the loop waits for data."
        return unsure("device_not_timed", seen, HEADROOM)
    witness = evidence.known("witness")
    told = evidence.known("kernels") or (witness and witness.idle is not None)
    if evidence.kind == "gpu" and not told:
        seen = f"{evidence.compute_share:.0%} of the time, at most, the device is busy, an upper "
        seen += f"bound, as gaps between its kernels count{f': {witness.text}' if witness else ''}."
        return unsure("busy_is_an_upper_bound", seen, LOOK_INSIDE)
    if not evidence.watched or evidence.body:
        return None
    missing = evidence.lines.missing or "too few stacks were sampled"
    seen = f"Whether the loop body is training was not seen: {missing}."
    return unsure("body_not_seen", seen, LOOK_INSIDE)


# -- what limits a verdict -------------------------------------------------------------------------


def caveats(evidence: Evidence, run: RunData) -> dict[str, float]:
    """Return what else had a part in the times of a run.

    Each, in words, comes with how much of the confidence it leaves, 0 to 1.
    """
    limited = {}
    seconds = run.length_s - run.warm_s
    use = evidence.use
    if use.others_share > limits.DISTURBS:
        taken = f"{use.others:.1f} of {use.cores} cores meanwhile (`top` names them)"
        limited[f"Other programs used {taken}."] = max(1 - use.others_share, 0.0)
    if share := evidence.known("others_on_card"):
        limited[f"Other programs computed on the same GPU: {share:.0%} of the time."] = 1 - share
    if spare := evidence.known("spare_card"):
        limited[TO_THE_CARD.format(spare)] = 1.0
    if run.event("full"):
        limited[f"The verdict is of the first {run.steps:,} steps: no more are recorded."] = 1.0
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        limited[f"A short look: {longer}"] = seconds / limits.LONG_ENOUGH_S
    return limited
