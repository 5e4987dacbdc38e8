"""Why a run gets no verdict, and what limits one: too short, instruments that disagree, others."""

from __future__ import annotations

from collections import Counter

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding
from labkit.results.run_data import RunData
from labkit.text import counted

# Causes that workers seem to have which only lack a core
OF_SLOW_WORKERS = ("cores", "too_few_workers", "waiting_for_data", "stalls")
STOP_OTHERS = "Stop the other work and run again."
LOOK_INSIDE = (
    "Look inside a few steps: run a pipeline with xray=True and 20 steps or more; of a loop of "
    "yours record them with torch.profiler, and give the trace to lk.diagnose."
)
OTHER_PROFILER = (
    "Look with the maker's own profiler, such as Nsight Systems. CUDA graphs hide kernels from "
    "some profilers: run without compile='reduce-overhead'."
)
ON_THE_CPU = "The model is on the CPU, and does not use the"
TO_THE_CARD = (
    "move the model there before its optimizer is made, and each batch in the loop. If torch sees "
    "no device, `labkit machine` says why."
)
HEADROOM = "Ask lk.headroom(loader), which waits for the device, what a better loader would bring."


def unsure(cause: str, evidence: str, advice: str) -> Finding:
    """Return a finding that says why there is no verdict, and what to do for one."""
    return Finding("unsure", cause, evidence=evidence, advice=advice)


def too_short(steps: int) -> Finding:
    """Too few steps were measured."""
    seen = f"{steps} steps were measured after the warm-up; a verdict needs {limits.MIN_STEPS}."
    return unsure("too_short", seen, f"Run {counted(limits.MIN_STEPS - steps, 'more step')}.")


def too_close(agree: Counter[str]) -> Finding | None:
    """The resampled runs, of which `agree` counts the bottlenecks, do not agree."""
    (first, times), *others = agree.most_common(2)
    if times >= limits.MIN_CONFIDENCE * limits.RESAMPLES:
        return None
    seen = f"{times} of {limits.RESAMPLES} resampled runs say {first}, the others "
    seen += f"{others[0][0]} or another (threshold {limits.MIN_CONFIDENCE:.0%})."
    return unsure("too_close_to_call", seen, "Run longer (more steps), on a quiet machine.")


def against(first: Finding, evidence: Evidence) -> Finding | None:
    """Return why the first finding is no verdict; None where it is one."""
    shared = evidence.known("others_on_card") or 0.0
    if shared > limits.FOREIGN_LOAD:
        seen = f"{shared:.0%} of the time kernels of other processes ran on the same GPU (NVML)."
        return unsure("neighbour", seen, STOP_OTHERS)
    taken = taken_by_others(first, evidence)
    if taken > limits.FOREIGN_LOAD:
        seen = f"{taken:.0%} of the time in which this program had work, others had its cores "
        return unsure("neighbour", f"{seen}(threshold {limits.FOREIGN_LOAD:.0%}).", STOP_OTHERS)
    kernels = evidence.known("kernels")
    if kernels is not None and evidence.compute_us:
        ratio = kernels.kernel_us / evidence.compute_us
        least = limits.GRAPH_KERNELS if kernels.cuda_graphs else 0.0
        if not ratio or not least <= ratio <= limits.DISAGREE_OVER:
            seen = f"{kernels.kernel_us / 1e3:.1f} ms of kernels in a step, by the x-ray, and "
            seen += f"{evidence.compute_us / 1e3:.1f} ms of a busy device, by its events."
            return unsure("instruments_disagree", seen, OTHER_PROFILER)
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


def caveats(evidence: Evidence, run: RunData, seconds: float) -> dict[str, float]:
    """Return what else had a part in the times of a run of which `seconds` were measured.

    Each, in words, comes with how much of the confidence it leaves, 0 to 1.
    """
    said = {}
    use, crowded = evidence.use, evidence.crowded_by
    if crowded > limits.DISTURBS:
        named = f": {', '.join(run.beside)}" if run.beside else ""
        taken = f"{use.others or 0.0:.1f} of {use.cores} cores meanwhile{named}"
        said[f"Other programs used {taken}."] = max(1 - crowded, 0.0)
    if run.on_the_card:
        share = evidence.known("others_on_card")
        named = f"Other programs were on the same GPU: {', '.join(run.on_the_card)}."
        said[named] = limits.UNSEEN if share is None else 1 - share
    if spare := evidence.known("spare_card"):
        said[f"{ON_THE_CPU} {spare}: {TO_THE_CARD}"] = 1.0
    if run.is_cut_short:
        said[f"The verdict is of the first {run.steps:,} steps: no more are recorded."] = 1.0
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said[f"A short look: {longer}"] = seconds / limits.LONG_ENOUGH_S
    return said


def not_seen(evidence: Evidence) -> tuple[str, ...]:
    """Return notes on what no instrument saw: causes that ask for it are not judged."""
    doubt = unseen(evidence)
    notes = [doubt.evidence] if doubt else []
    if evidence.of_bench and not (evidence.known("xray") or evidence.known("kernels")):
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    return tuple(notes)
