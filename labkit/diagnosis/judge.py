"""The verdict: which losses are worth a name, which comes first, how sure that is, and doubts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from labkit.diagnosis import causes  # noqa: F401 - causes register themselves
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.causes.device import nothing_lost
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    BESIDE_TRAINING,
    LOOK_INSIDE,
    LOSS,
    WARNING,
    Diagnosis,
    Finding,
    found,
    not_judged,
)
from labkit.diagnosis.step_table import StepTable, of_trace, of_traces
from labkit.diagnosis.wording import worded
from labkit.results.run_data import RunData
from labkit.traces.read import Breakdown, RankTraces

# Causes that workers seem to have which only lack a core
OF_SLOW_WORKERS = ("cores", "too_few_workers", "waiting_for_data", "stalls")
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
        doubt = worded(too_short(table.steps))
        return Diagnosis((doubt,), 0.0, source, mark=run.mark)
    evidence = table.evidence()
    first, *_ = findings = by_cost(evidence)
    agree = resampled(table)
    hidden = unseen(evidence)
    doubt = against(first, evidence) or too_close(agree)
    told = [worded(each, evidence, run) for each in (*filter(None, [doubt]), *findings)]
    # First doubts and losses that a remedy can reduce, then the rest
    told.sort(key=lambda each: each.name != "unsure" and not (each.lost_share and each.remedies))
    limited = caveats(evidence, run)
    sure = 0.0 if doubt else agree[first.name] / limits.RESAMPLES
    return Diagnosis(
        tuple(told),
        min(sure * min(limited.values(), default=1.0), most_confidence(first, evidence)),
        source,
        (hidden.evidence,) if hidden else (),
        tuple(limited),
        run.mark,
        not_judged(evidence),
    )


def of_traced(traced: Breakdown | RankTraces) -> Diagnosis:
    """Diagnose what was read from the trace of a rank, or from those of several."""
    evidence = of_trace(traced) if isinstance(traced, Breakdown) else of_traces(traced)
    findings = tuple(worded(each, evidence) for each in by_cost(evidence))
    return Diagnosis(findings, lead(evidence), evidence.source, not_judged=not_judged(evidence))


def losses(evidence: Evidence) -> tuple[list[Finding], dict[str, float]]:
    """Return what every cause costs, however small, and each bottleneck's loss: causes add up.

    Where a script does much beside its training, what the others cost is a share of the rest.
    """
    losing = list(found(evidence, LOSS))
    rest = 1 - sum(each.lost_share for each in losing if each.cause in BESIDE_TRAINING)
    total: dict[str, float] = defaultdict(float)
    for place, each in enumerate(losing):
        share = each.lost_share * (1 if each.cause in BESIDE_TRAINING else rest)
        losing[place] = replace(each, lost_share=share)
        total[each.name] += share
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
    drawn = limits.RESAMPLES, min(table.steps, limits.MOST_DRAWN)
    draws = np.random.default_rng(0).integers(0, table.steps, drawn)
    return Counter(by_cost(table.evidence(rows))[0].name for rows in draws)


def lead(evidence: Evidence) -> float:
    """Return how far a trace's first loss is ahead of the next, or of its threshold, 0 to 1."""
    _, total = losses(evidence)
    times = [loss / limits.WORTH_NAMING[name] for name, loss in total.items()]
    *_, second, first = sorted([1.0, *times])
    return 1 - second / first


def most_confidence(first: Finding, evidence: Evidence) -> float:
    """Return the most confidence in a verdict: a device is trusted where something saw it."""
    is_told = first.lost_share or evidence.known("xray") or evidence.known("kernels")
    return 1.0 if is_told and not evidence.launches_only else limits.UNSEEN


# -- why there is no verdict -----------------------------------------------------------------------


def unsure(cause: str, evidence: str, advice: str, page: str = "symptoms/no-verdict.md") -> Finding:
    """Return a finding that says why there is no verdict, and what to do for one."""
    return Finding("unsure", cause, page, evidence=evidence, advice=advice)


def too_short(steps: int) -> Finding:
    """Too few steps were measured."""
    seen = f"{steps} steps were measured after the warm-up; a verdict needs {limits.MIN_STEPS}."
    return unsure("too_short", seen, "Run longer (more steps).")


def too_close(agree: Counter[str]) -> Finding | None:
    """The resampled runs, of which `agree` counts the bottlenecks, do not agree."""
    [(first, times)] = agree.most_common(1)
    if times >= limits.MIN_CONFIDENCE * limits.RESAMPLES:
        return None
    seen = f"{times} of {limits.RESAMPLES} resampled runs say {first}, the others something else."
    return unsure("too_close_to_call", seen, "Run longer (more steps), on a quiet machine.")


def against(first: Finding, evidence: Evidence) -> Finding | None:
    """Return why the first finding is no verdict; None where it is one."""
    shared = evidence.known("others_on_card") or 0.0
    if shared > limits.FOREIGN_LOAD:
        seen = f"{shared:.0%} of the time kernels of other processes ran on the same GPU (NVML)."
        return unsure("neighbour", seen, STOP_OTHERS, "symptoms/neighbour.md")
    taken = taken_by_others(first, evidence)
    if taken > limits.FOREIGN_LOAD:
        seen = f"{taken:.0%} of the time in which this program had work, others had its cores "
        return unsure(
            "neighbour",
            f"{seen}(threshold {limits.FOREIGN_LOAD:.0%}).",
            STOP_OTHERS,
            "symptoms/neighbour.md",
        )
    return unseen(evidence) if first.name == "compute" else None


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


def unseen(evidence: Evidence) -> Finding | None:
    """Nothing saw whether the device works, where it seems to be the limit."""
    if evidence.launches_only:
        seen = "The device was not timed: it may work while the loop waits for data."
        return unsure("device_not_timed", seen, HEADROOM)
    witness = evidence.known("witness")
    told = evidence.known("kernels") or (witness and witness.idle is not None)
    if evidence.kind == "gpu" and not told:
        seen = f"{evidence.compute_share:.0%} of the time, at most, the device is busy, an upper "
        seen += f"bound, as gaps between its kernels count{f': {witness.said}' if witness else ''}."
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
    said = {}
    seconds = run.length_s - run.warm_s
    use, crowded = evidence.use, evidence.crowded_by
    if crowded > limits.DISTURBS:
        taken = f"{use.others or 0.0:.1f} of {use.cores} cores meanwhile (`top` names them)"
        said[f"Other programs used {taken}."] = max(1 - crowded, 0.0)
    if share := evidence.known("others_on_card"):
        said[f"Other programs computed on the same GPU: {share:.0%} of the time."] = 1 - share
    if spare := evidence.known("spare_card"):
        said[TO_THE_CARD.format(spare)] = 1.0
    if run.event("full"):
        said[f"The verdict is of the first {run.steps:,} steps: no more are recorded."] = 1.0
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said[f"A short look: {longer}"] = seconds / limits.LONG_ENOUGH_S
    return said
