"""Why a run gets no verdict, and what limits one: too short, instruments that disagree, others."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import (
    CONCLUDED,
    NEIGHBOUR,
    Finding,
    Measured,
    Remedy,
    explains,
)
from labkit.results.run_data import RunData
from labkit.results.watched_pipeline import BODY_NOTE
from labkit.spec import GRAPH_MODES
from labkit.text import counted

explains(
    "no-verdict",
    "too_short",
    "too_close_to_call",
    "busy_is_an_upper_bound",
    "device_not_timed",
    "body_not_seen",
    "instruments_disagree",
)
# Causes that workers seem to have which only lack a core
OF_SLOW_WORKERS = ("cores", "too_few_workers", "waiting_for_data", "stalls")
RUN_LONGER = Remedy("run_longer", "Run longer (more steps), on a quiet machine.")
STOP_OTHERS = Remedy("stop_others", "Stop the other work and run again.")
XRAY = Remedy("xray", "Look inside a few steps: run it with xray=True and 20 steps or more.")
PROFILE = Remedy(
    "profile", "Record a few steps with torch.profiler, and give the trace to lk.diagnose."
)
HEADROOM = Remedy(
    "headroom",
    "Ask lk.headroom(loader), which waits for the device, what a better loader would bring.",
)
MAKERS_PROFILER = Remedy(
    "makers_profiler",
    "Look with the maker's own profiler: Nsight Systems, or Instruments beside "
    "torch.mps.profiler.profile(). CUDA graphs hide kernels from some profilers: run without "
    "compile='reduce-overhead'.",
)


def look_inside(evidence: Evidence) -> Remedy:
    """Return the remedy to look with what has not looked yet."""
    if evidence.known("xray"):
        return MAKERS_PROFILER
    return XRAY if evidence.of_bench else PROFILE


def unsure(cause: str, remedy: Remedy, *measured: Measured) -> Finding:
    """Return a finding that says why there is no verdict."""
    return Finding("unsure", cause, measured=measured, remedies=(remedy,))


def too_short(steps: int) -> Finding:
    """Too few steps were measured."""
    more = counted(limits.MIN_STEPS - steps, "more step")
    seen = f"steps were measured after the warm-up; a verdict needs {limits.MIN_STEPS}"
    return unsure("too_short", Remedy("run_on", f"Run {more}."), Measured(seen, steps, "count"))


def too_close(confidence: float, names: list[str]) -> Finding:
    """The resampled runs do not agree."""
    seen = (
        f"of the resampled runs give the same verdict (threshold {limits.MIN_CONFIDENCE:.0%}); "
        f"the candidates are {' and '.join(names[:2])}"
    )
    return unsure("too_close_to_call", RUN_LONGER, Measured(seen, confidence))


def against(first: Finding, evidence: Evidence) -> Finding | None:
    """Return why the first finding is no verdict; None where it is one."""
    shared = evidence.card.known("others_share") or 0.0
    if shared > limits.FOREIGN_LOAD:
        seen = "of the time kernels of other processes ran on the same GPU"
        return unsure(NEIGHBOUR, STOP_OTHERS, Measured(seen, shared, by="NVML"))
    taken = taken_by_others(first, evidence)
    if taken > limits.FOREIGN_LOAD:
        seen = "of the time in which this program had work, others had its cores"
        by = f"psutil; threshold {limits.FOREIGN_LOAD:.0%}"
        return unsure(NEIGHBOUR, STOP_OTHERS, Measured(seen, taken, by=by))
    kernels = None if evidence.known("trace") else evidence.known("kernels")
    if kernels is not None and evidence.compute_us:
        ratio = kernels.kernel_us / evidence.compute_us
        graphs = kernels.cuda_graphs or evidence.knobs.get("compile") in GRAPH_MODES
        least = limits.GRAPH_KERNELS if graphs else 0.0
        if ratio == 0 or ratio < least or ratio > limits.DISAGREE_OVER:
            return unsure(
                "instruments_disagree",
                MAKERS_PROFILER,
                Measured("of kernels in a step, by the x-ray", kernels.kernel_us / 1e3, "ms"),
                Measured("of a busy device, by its events", evidence.compute_us / 1e3, "ms"),
            )
    return unseen(evidence) if first.name == "compute" else None


def taken_by_others(first: Finding, evidence: Evidence) -> float:
    """Return the share of time in which others had the cores, where that speaks against a finding.

    What makes all of a program slower in proportion leaves its lines and their shares as they are.
    But it starves loader workers, which is then no fault of theirs; and a device that others use is
    not the limit, nor are its launches of a watched loop's making.
    """
    taken = evidence.stolen_by_others
    doubted = evidence.kind == "cpu" and first.cause in CONCLUDED
    if evidence.known("loop"):
        doubted = doubted or first.name == "launch" or first.cause == "cold_start"
    starved = evidence.has_workers and first.cause in OF_SLOW_WORKERS and first.lost_share <= taken
    return taken if doubted or starved else 0.0


def unseen(evidence: Evidence) -> Finding | None:
    """The device seems to be the limit, and nothing saw whether it works."""
    share = evidence.compute_share
    if evidence.launches_only:
        seen = "of the time the host is in the loop's body; what the device did was not timed here"
        return unsure("device_not_timed", HEADROOM, Measured(seen, share))
    if evidence.gaps_may_hide:
        seen = (
            "of the time, at most, the device is busy: a step counts from its first kernel to its "
            "last, and whether gaps between them are waits for the host was not seen"
        )
        witness = evidence.card.known("witness")
        told = (Measured(witness.said),) if witness else ()
        return unsure("busy_is_an_upper_bound", look_inside(evidence), Measured(seen, share), *told)
    loop = evidence.known("loop")
    if loop is None or evidence.body:
        return None
    missing = loop.lines.missing or "too few stacks were sampled"
    seen = f"of the time is the loop's body; whether that is training was not seen: {missing}"
    return unsure("body_not_seen", PROFILE, Measured(seen, share))


# -- what limits a verdict -------------------------------------------------------------------------


def caveats(evidence: Evidence, run: RunData, seconds: float) -> dict[str, float]:
    """Return what else had a part in the times of a run of which `seconds` were measured.

    Each, in words, comes with how much of the confidence it leaves, 0 to 1.
    """
    said = {}
    use, crowded = evidence.use, evidence.crowded_by
    if crowded > limits.DISTURBS:
        taken = f"had the model's core for {crowded:.0%} of the time"
        if use.others_share > limits.DISTURBS:
            named = f": {', '.join(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        said[f"Other programs {taken}."] = max(1 - crowded, 0.0)
    if run.on_the_card:
        share = evidence.card.known("others_share")
        named = f"Other programs were on the same GPU: {', '.join(run.on_the_card)}."
        said[named] = limits.UNSEEN if share is None else 1 - share
    if spare := evidence.known("spare_card"):
        said[f"The model is on the CPU, and does not use the {spare}."] = 1.0
    if run.is_cut_short:
        said[f"The verdict is of the first {run.steps:,} steps: no more are recorded."] = 1.0
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said[f"A short look: {longer}"] = seconds / limits.LONG_ENOUGH_S
    return said


def not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    if evidence.known("loop") and not evidence.body:
        notes.append(BODY_NOTE)
    if evidence.of_bench and not (evidence.known("xray") or evidence.known("kernels")):
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes
