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
    remedy,
)
from labkit.results.run_data import RunData
from labkit.spec import GRAPH_MODES
from labkit.text import counted, listed

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


@remedy
def look_inside(evidence: Evidence) -> Remedy:
    """Whatever has not looked yet."""
    if evidence.known("xray") is not None:
        return MAKERS_PROFILER
    return XRAY if evidence.of_bench else PROFILE


def doubt(cause: str, *measured: Measured, remedy: Remedy) -> Finding:
    """Return a finding that says why there is no verdict."""
    return Finding("unsure", cause, measured=measured, remedies=(remedy,))


def too_short(steps: int) -> Finding | None:
    """Too few steps were measured."""
    missing = limits.MIN_STEPS - steps
    if missing <= 0:
        return None
    more = f"Run {counted(missing, 'more step')}."
    seen = f"steps were measured after the warm-up; a verdict needs {limits.MIN_STEPS}"
    return doubt("too_short", Measured(seen, steps, "count"), remedy=Remedy("run_on", more))


def too_close(confidence: float, names: list[str]) -> Finding:
    """The resampled runs do not agree."""
    seen = (
        f"of the resampled runs give the same verdict (threshold {limits.MIN_CONFIDENCE:.0%}); "
        f"the candidates are {' and '.join(names[:2])}"
    )
    return doubt("too_close_to_call", Measured(seen, confidence), remedy=RUN_LONGER)


def against(first: Finding, evidence: Evidence) -> Finding | None:
    """Return why the first finding is no verdict; None where it is one."""
    return (
        gpu_shared(evidence)
        or cores_shared(first, evidence)
        or contradiction(evidence)
        or (of_a_busy_device(evidence) if first.name == "compute" else None)
    )


def gpu_shared(evidence: Evidence) -> Finding | None:
    """Other processes worked on the same GPU."""
    limit = limits.FOREIGN_LOAD
    share = evidence.card.others_share
    if share is None or share <= limit:
        return None
    seen = "of the time kernels of other processes ran on the same GPU"
    ran = Measured(seen, share, by=f"NVML; threshold {limit:.0%}")
    return doubt(NEIGHBOUR, ran, remedy=STOP_OTHERS)


def cores_shared(first: Finding, evidence: Evidence) -> Finding | None:
    """Other programs had the cores that this one's threads waited for.

    What makes all of a program slower in proportion leaves its lines and their shares as they are.
    But it starves loader workers, which is then no fault of theirs; and a device that others use is
    not the limit, nor are its launches of a watched loop's making.
    """
    use = evidence.use
    taken = evidence.stolen_by_others
    slowed = evidence.kind == "cpu" and first.cause in CONCLUDED
    if evidence.loop is not None:
        taken = use.taken or 0.0 if use.is_shared else 0.0
        slowed = slowed or first.name == "launch" or first.cause == "cold_start"
    starved = first.cause in OF_SLOW_WORKERS and evidence.has_workers
    starved = starved and first.lost_share <= taken
    if taken <= limits.FOREIGN_LOAD or not (slowed or starved):
        return None
    seen = "of the time in which this program had work, others had its cores"
    measured = [Measured(seen, taken, by=f"threshold {limits.FOREIGN_LOAD:.0%}")]
    if use.others is not None:
        of_cores = f"of {use.cores} were used by other programs"
        measured.append(Measured(of_cores, use.others, "cores", "psutil"))
    return doubt(NEIGHBOUR, *measured, remedy=STOP_OTHERS)


def contradiction(evidence: Evidence) -> Finding | None:
    """The x-ray's kernels and the run's own events cannot both be right (a GPU)."""
    kernels = evidence.kernels
    if evidence.trace or kernels is None or not evidence.compute_us:
        return None
    ratio = kernels.kernel_us / evidence.compute_us
    graphs = kernels.cuda_graphs or evidence.knobs.get("compile") in GRAPH_MODES
    missing = ratio == 0 or (graphs and ratio < limits.GRAPH_KERNELS)
    if not missing and ratio <= limits.DISAGREE_OVER:
        return None
    return doubt(
        "instruments_disagree",
        Measured("of kernels in a step, by the x-ray", kernels.kernel_us / 1e3, "ms"),
        Measured("of a busy device, by the run's own events", evidence.compute_us / 1e3, "ms"),
        remedy=MAKERS_PROFILER,
    )


def of_a_busy_device(evidence: Evidence) -> Finding | None:
    """The device seems to be the limit, and nothing saw whether it works."""
    if evidence.launches_only:
        seen = "of the time the host is in the loop's body; what the device did was not timed here"
        return doubt("device_not_timed", Measured(seen, evidence.compute_share), remedy=HEADROOM)
    if evidence.gaps_may_hide:
        seen = (
            "of the time, at most, the device is busy: a step counts from its first kernel to its "
            "last, and whether gaps between them are waits for the host was not seen"
        )
        told = (Measured(witness.said) for witness in evidence.card.witnesses)
        busy = Measured(seen, evidence.compute_share)
        return doubt("busy_is_an_upper_bound", busy, *told, remedy=look_inside)
    if evidence.loop is None or evidence.body:
        return None
    missing = evidence.loop.lines.missing or "too few stacks were sampled"
    seen = f"of the time is the loop's body; whether that is training was not seen: {missing}"
    return doubt("body_not_seen", Measured(seen, evidence.compute_share), remedy=PROFILE)


# -- what limits a verdict -------------------------------------------------------------------------


def caveats(evidence: Evidence, run: RunData, seconds: float) -> dict[str, float]:
    """Return what else had a part in the times of a run of which `seconds` were measured.

    Each, in words, comes with how much of the confidence it leaves, 0 to 1.
    """
    said = {}
    if evidence.crowded_by > limits.DISTURBS:
        taken = f"had the model's core for {evidence.stolen_by_others:.0%} of the time"
        use = evidence.use
        if use.others_share > limits.DISTURBS:
            named = f": {listed(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        said[f"Other programs {taken}."] = max(1 - evidence.crowded_by, 0.0)
    if evidence.kind == "gpu" and run.on_the_card:
        share = evidence.card.others_share
        named = f"Other programs were on the same GPU: {listed(run.on_the_card)}."
        said[named] = limits.UNSEEN if share is None else 1 - share
    if evidence.spare_card:
        said[f"The model is on the CPU, and does not use the {evidence.spare_card}."] = 1.0
    if run.is_cut_short:
        said[f"The verdict is of the first {run.steps:,} steps: no more are recorded."] = 1.0
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said[f"A short look: {longer}"] = seconds / limits.LONG_ENOUGH_S
    return said


def not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    if evidence.of_bench and evidence.xray is None and evidence.kernels is None:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes
