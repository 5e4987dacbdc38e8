"""MFU and MBU: how much of what the device could do the model really needed.

MFU: the FLOPs of the model's forward and backward pass over what the peak allows in the time
(Chowdhery et al., "PaLM", JMLR 24, 2023, appendix B). MBU: the same of bytes, a lower bound of
the traffic (both counted in `labkit.bench.flops`).
"""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.doubts import LOOK_INSIDE, MAKERS_PROFILER, PROFILE
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import DEVICE_LIMIT, Finding, Measured, Remedy
from labkit.results.device_peaks import Peak
from labkit.results.run_data import RunData
from labkit.stamps.record import Event
from labkit.text import percent

LARGER = Remedy(
    "larger_batch_or_width",
    "Raise the batch or the width: more arithmetic for each launch and each byte.",
)


def with_low_mfu(
    run: RunData, evidence: Evidence, found: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Add a finding where a busy device does little of what it could; last: no loss of its own."""
    reached = run.mfu
    reference = run.peak
    work = run.event("work")
    busy = evidence.compute_share
    taken = evidence.stolen_by_others + (evidence.stolen_by_workers or 0.0)  # of a CPU's core
    if reached is None or reference is None or work is None or evidence.launches_only:
        return found
    if busy < limits.BUSY or reached >= limits.LOW_MFU * (busy - taken):
        return found
    reason, remedy = _reason(work, reference, run.mbu, evidence)
    low = Finding(
        "compute",
        "low_MFU",
        measured=(
            Measured(f"of the time busy, with an MFU of {percent(reached)} (of {reference})", busy),
            Measured(reason, by=f"threshold {limits.LOW_MFU:.0%} of the busy time"),
        ),
        remedies=(remedy,),
    )
    if found[-1].cause == DEVICE_LIMIT:
        return *found[:-1], replace(low, measured=low.measured + found[-1].measured)
    return *found, low


def _reason(
    work: Event, reference: Peak, mbu: float | None, evidence: Evidence
) -> tuple[str, Remedy]:
    """Return why an MFU is low, and what to change."""
    ridge = reference.ridge
    intensity = work["flops"] / max(work["bytes"], 1)
    if ridge and mbu is not None and intensity < ridge:
        moves = f"memory-bound, at most {intensity:.3g} FLOP for each byte that moves"
        return f"{moves}, and the ridge is at {ridge:.3g}", LARGER
    inside = LOOK_INSIDE if evidence.could_look else PROFILE
    return "why was not seen", MAKERS_PROFILER if evidence.xray else inside
