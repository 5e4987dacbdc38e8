"""What surrounds a loop: switches of the whole process, and torch's own threads."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import FIRST, cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, Remedy
from labkit.watching.switches import SWITCHES


@cause("loop-body", "switch", when=FIRST)
def left_on(evidence: Evidence) -> Finding | None:
    """A debugging aid is on for the whole process: anomaly mode, a profiler, a debugger.

    It is one of `SWITCHES`. What it costs is not known.
    """
    on = {name: SWITCHES[name] for name in evidence.switches if name in SWITCHES}
    if not on:
        return None
    said = tuple(Measured(f"{name} is on: it {switch.does}") for name, switch in on.items())
    lines = "; ".join(switch.delete for switch in on.values())
    told = f"Delete {lines}. What it costs shows when it is gone: run again."
    remedies = (Remedy("delete_switch", told, "lines"),)
    return Finding("host", "switch", measured=said, remedies=remedies)


@cause("threads")
def too_many_threads(evidence: Evidence) -> Finding | None:
    """Torch computes with more threads than there are cores: each waits for the others.

    Cause "threads", where CROWDED threads for each core had work, and no other program takes part.
    It costs the compute's share that these cores would not need.
    """
    use = evidence.use
    cores = use.cores or 0
    wanted = (use.own or 0.0) + (use.in_line or 0.0)
    crowded = evidence.threads > cores > 0 and wanted > limits.CROWDED * cores
    if not crowded or use.is_shared:
        return None
    lost = (1 - cores / wanted) * evidence.compute_share
    seen = (
        f"torch computes with {evidence.threads} threads on {cores} cores: on average "
        f"{wanted:.1f} threads of this program had work"
    )
    remedy = Remedy(
        "threads_as_cores",
        "Let torch compute with as many threads as there are cores.",
        "lines",
        code=f"torch.set_num_threads({cores})  # or OMP_NUM_THREADS={cores} in the environment\n",
    )
    measured = (Measured(seen, by="time in line, Linux's schedstat"),)
    return Finding("host", "threads", lost, measured, (remedy,))
