"""Several ranks wait for their exchange, or for one another."""

from __future__ import annotations

from labkit.diagnosis.cause import cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, Remedy

OVERLAP_EXCHANGE = Remedy(
    "overlap_exchange",
    "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch.",
    "exchange",
)


@cause("ranks", "exposed_collectives")
def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace).

    It costs the share of the time in which nothing else runs.
    """
    lost = evidence.communication_share
    trace = evidence.trace
    if not lost:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    measured = [Measured(seen, lost, by=evidence.source)]
    late = trace.known("late_rank")
    remedy = OVERLAP_EXCHANGE
    if late is not None:
        measured.append(Measured(trace.late_said))
        look = f"Look into the trace of rank {late} first: the others wait for it."
        remedy = Remedy("look_into_the_late_trace", look, "ranks")
    name = "exposed_collectives"
    return Finding("communication", name, lost, tuple(measured), (remedy,), rank=late)
