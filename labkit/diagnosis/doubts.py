"""Why a run gets no verdict, and what limits one: too short, instruments that disagree, others."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import NEIGHBOUR, Finding, Measured, Remedy
from labkit.diagnosis.symptoms import explains
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
OF_SLOW_WORKERS = ("cores", "too_few_workers", "waiting_for_data")
RUN_LONGER = Remedy("run_longer", "Run longer (more steps), on a quiet machine.")
STOP_OTHERS = Remedy("stop_others", "Stop the other work and run again.")
LOOK_INSIDE = Remedy(
    "look_inside", "Look inside a few steps: run it with xray=True and 20 steps or more."
)
PROFILE = Remedy(
    "profile", "Record a few steps with torch.profiler, and give the trace to lk.diagnose."
)
MAKERS_PROFILER = Remedy(
    "makers_profiler",
    "Look with the maker's own profiler: Nsight Systems, or Instruments beside "
    "torch.mps.profiler.profile().",
)
HEADROOM = Remedy(
    "headroom",
    "Ask lk.headroom(loader), which waits for the device, what a better loader would bring.",
)
SOME_SECONDS = Remedy("some_seconds", "Let it run for some seconds more.")
NSIGHT = Remedy("nsight", "Look with Nsight Systems.")
WITHOUT_GRAPHS = Remedy(
    "without_graphs",
    "CUDA graphs hide kernels from some profilers: run without compile='reduce-overhead'. Look "
    "with Nsight Systems.",
)


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


def of_a_busy_device(evidence: Evidence) -> Finding | None:
    """The device seems to be the limit, and nothing saw whether it works."""
    if evidence.launches_only:
        seen = "of the time the host is in the loop's body; what the device did was not timed here"
        return doubt("device_not_timed", Measured(seen, evidence.compute_share), remedy=HEADROOM)
    if evidence.gaps_may_hide:
        remedy = LOOK_INSIDE if evidence.could_look else PROFILE
        if evidence.xray is not None:  # it looked, and saw nothing of the device
            remedy = MAKERS_PROFILER
        seen = (
            "of the time, at most, the device is busy: a step counts from its first kernel to its "
            "last, and whether gaps between them are waits for the host was not seen"
        )
        measured = [Measured(witness.said) for witness in evidence.card.witnesses]
        busy = Measured(seen, evidence.compute_share)
        return doubt("busy_is_an_upper_bound", busy, *measured, remedy=remedy)
    loop = evidence.loop
    if loop is None or evidence.body:
        return None
    missing = loop.lines.missing or "too few stacks were sampled"
    seen = f"of the time is the loop's body; whether that is training was not seen: {missing}"
    remedy = PROFILE if loop.lines.refused else SOME_SECONDS
    return doubt("body_not_seen", Measured(seen, evidence.compute_share), remedy=remedy)


def contradiction(evidence: Evidence) -> Finding | None:
    """The x-ray's kernels and the run's own events cannot both be right (a GPU)."""
    kernels = evidence.kernels
    if evidence.kind != "gpu" or kernels is None or not evidence.compute_us:
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
        remedy=WITHOUT_GRAPHS if graphs else NSIGHT,
    )


def device_shared(
    evidence: Evidence, first: Finding, losses: Mapping[str, float]
) -> Finding | None:
    """Others worked on the device, or had the cores that a watched loop's threads waited for."""
    if evidence.kind == "gpu":
        shared = _gpu_shared(evidence)
        if shared or first.name == "compute":
            return shared
    limit = limits.FOREIGN_LOAD
    taken = evidence.stolen_by_others
    use = evidence.use
    of_cores = f"of {use.cores} were used by other programs"
    known = () if use.others is None else (Measured(of_cores, use.others, "cores", "psutil"),)
    # Who takes the CPU's core makes all that the host does longer in proportion, so its shares
    # stand. But that starves loader workers, which is then no fault of the pipeline, and a device
    # that others use is not the limit.
    starved = first.name == "input" and evidence.has_workers and losses["input"] <= taken
    if taken > limit and (first.name == "compute" or starved):
        seen = "of the time another program had the core that the model's thread needed"
        by = f"thread CPU time; threshold {limit:.0%}"
        return doubt(NEIGHBOUR, Measured(seen, taken, by=by), *known, remedy=STOP_OTHERS)
    loop = evidence.loop
    if loop is None or not use.is_shared or first.cause == "padding":
        return None
    # What makes all of the program slower in proportion leaves its lines and their shares as they
    # are; workers that get no core look slow
    slow = first.name in ("compute", "launch") or first.cause == "cold_start"
    seen = "of the time in which this program had work, others had its cores"
    if use.taken is None:  # outside Linux
        return doubt(NEIGHBOUR, *known, remedy=STOP_OTHERS) if slow else None
    starved = first.cause in OF_SLOW_WORKERS and use.taken > limits.MOSTLY_OTHERS
    if slow and (use.taken > limit or loop.drift) or starved:
        return doubt(NEIGHBOUR, *known, Measured(seen, use.taken), remedy=STOP_OTHERS)
    return None


def _gpu_shared(evidence: Evidence) -> Finding | None:
    limit = limits.FOREIGN_LOAD
    share = evidence.card.others_share
    if share is None or share <= limit:
        return None
    seen = "of the time kernels of other processes ran on the same GPU"
    ran = Measured(seen, share, by=f"NVML; threshold {limit:.0%}")
    return doubt(NEIGHBOUR, ran, remedy=STOP_OTHERS)


# -- what limits a verdict -------------------------------------------------------------------------


def undisturbed(evidence: Evidence, run: RunData, seconds: float) -> float:
    """Return how much of the confidence (0 to 1) the `caveats` leave."""
    crowded = evidence.crowded_by
    left = 1 - min(crowded, 1.0) if crowded > limits.DISTURBS else 1.0
    if evidence.kind == "gpu" and run.on_the_card:
        share = evidence.card.others_share
        left = min(left, limits.UNSEEN if share is None else 1 - share)
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        left *= seconds / limits.LONG_ENOUGH_S
    return left


def caveats(evidence: Evidence, run: RunData, seconds: float) -> tuple[str, ...]:
    """Say what else had a part in the times of a run of which `seconds` were measured."""
    said = []
    if evidence.crowded_by > limits.DISTURBS:
        taken = f"had the model's core for {evidence.stolen_by_others:.0%} of the time"
        use = evidence.use
        if use.others_share > limits.DISTURBS:
            named = f": {listed(run.beside)}" if run.beside else ""
            taken = f"used {use.others:.1f} of {use.cores} cores meanwhile{named}"
        said.append(f"Other programs {taken}.")
    if evidence.kind == "gpu" and run.on_the_card:
        said.append(f"Other programs were on the same GPU: {listed(run.on_the_card)}.")
    if evidence.spare_card:
        said.append(f"The model is on the CPU, and does not use the {evidence.spare_card}.")
    if run.is_cut_short:
        said.append(f"The verdict is of the first {run.steps:,} steps: no more are recorded.")
    if run.watched and seconds < limits.LONG_ENOUGH_S:
        longer = f"{seconds:.1f} s were measured, and a longer run gives a surer verdict."
        said.append(f"A short look: {longer}")
    return tuple(said)


def not_seen(evidence: Evidence) -> list[str]:
    """Return notes on what no instrument saw of the device."""
    notes = []
    looked = evidence.xray is not None or evidence.kernels is not None
    if evidence.could_look and not looked:
        notes.append("No x-ray: what happens inside the compute was not seen (xray=True).")
    elif evidence.xray and evidence.kind == "gpu" and evidence.kernels is None:
        notes.append("The x-ray holds no device activity: gaps between kernels were not seen.")
    if evidence.gaps_may_hide:
        notes.append("On a GPU gaps between kernels count as busy: its share is an upper bound.")
    if evidence.launches_only:
        notes.append("The device was not timed: it may work while the loop waits for data.")
    return notes
