"""What surrounds a loop: the rest of its script, and other ranks."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import wall_shares
from labkit.diagnosis.cause import cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import BESIDE_TRAINING, Finding, Remedy, gain_without, loss

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
        'Look at the lines whose phase is "between", and run them less often: checkpoints, '
        "metrics, plots, a loader that is built anew.",
        "lines",
    ),
}


@cause("periodic", *BESIDE_TRAINING)
def beside_training(evidence: Evidence) -> Finding | None:
    """A script spends much of its time on validation, or between its epochs.

    Cause "validation" or "between_epochs", the larger, where it takes BESIDE of the time from the
    first batch to the last or more. It costs all of that.
    """
    whole = evidence.whole
    if whole.running <= 0:
        return None
    part = max(REMEDIES, key=whole.share)
    share = whole.share(part) / whole.running
    if share < limits.BESIDE:
        return None
    where = f" ({whole.place(part)})" if whole.place(part) else ""
    seen = f"of the time after the start is {part}{where}"
    more = {"by": "passes", "at_most": gain_without(share)}
    return loss("host", part.replace(" ", "_"), share, seen, REMEDIES[part], **more)


def of_the_whole(found: list[Finding], evidence: Evidence) -> list[Finding]:
    """Return findings with shares of a script's time, where one is of what is beside its training.

    What the others cost is a share of the rest.
    """
    beside = [each for each in found if each.cause in BESIDE_TRAINING]
    rest = 1 - sum(each.lost_share for each in beside)
    return [
        each if each in beside else replace(each, lost_share=each.lost_share * rest)
        for each in found
    ]


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
    late = evidence.trace.known("late_rank")
    if not lost:
        return None
    seen = "of the time only collectives run, hidden behind no compute"
    remedy = OVERLAP_EXCHANGE
    if late is not None:
        seen += f"; {evidence.trace.late_said}"
        look = f"Look into the trace of rank {late} first: the others wait for it."
        remedy = Remedy("look_into_the_late_trace", look, "ranks")
    more = {"by": evidence.source, "rank": late}
    return loss("communication", "exposed_collectives", lost, seen, remedy, **more)
