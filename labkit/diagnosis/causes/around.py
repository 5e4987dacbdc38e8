"""What surrounds a loop: the rest of its script, and other ranks."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import wall_shares
from labkit.diagnosis.cause import LOSS, cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Remedy, loss

REMEDIES = {  # by the part of a script's time; with underscores these are the causes
    wall_shares.VALIDATION: Remedy(
        "validate_less",
        "Validate in `with torch.inference_mode():`, after model.eval(): it needs no gradients. "
        "Then less often, on a part of the data, or with larger batches and workers for its "
        "DataLoader.",
        "lines",
    ),
    wall_shares.BETWEEN: Remedy(
        "less_between",
        "Make cheaper, or run less often, what runs there: metrics, plots, checkpoints, a loader "
        "that is built anew.",
        "lines",
    ),
}


@cause(LOSS)
def beside_training(evidence: Evidence) -> Finding | None:
    """A script spends much of its time on validation, or between its epochs.

    Cause "validation" or "between_epochs", the larger, where it takes BESIDE of the time from the
    first batch to the last or more. It costs all of that.
    """
    whole = evidence.whole
    part = max(REMEDIES, key=whole.share)
    if whole.share(part) < limits.BESIDE * whole.running:
        return None
    share = whole.share(part) / whole.running
    place = whole.costliest(part).place
    seen = f"of the time after the start is {part}{f' ({place})' if place else ''}"
    name = part.replace(" ", "_")
    return loss("host", name, share, seen, "passes over loaders", REMEDIES[part])


OVERLAP_EXCHANGE = Remedy(
    "overlap_exchange",
    "Overlap or thin out the exchange: larger buckets, no_sync(), a larger batch.",
    "exchange",
)


@cause(LOSS)
def collectives(evidence: Evidence) -> Finding | None:
    """Nothing but collectives run: an exchange, or waiting for another rank's (a trace).

    Cause "exposed_collectives". It costs the share of the time in which nothing else runs.
    """
    lost = evidence.communication_share
    late = evidence.trace.known("late_rank")
    if not lost:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    remedy = OVERLAP_EXCHANGE
    if late is not None:
        seen += f"; {evidence.trace.late_said}"
        look = f"Look into the trace of rank {late} first: the others wait for it."
        remedy = Remedy("look_into_the_late_trace", look, "ranks")
    name = "exposed_collectives"
    return loss("communication", name, lost, seen, evidence.source, remedy, rank=late)
