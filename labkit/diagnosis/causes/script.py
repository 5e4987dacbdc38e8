"""What a script does beside its training loop: validation, checkpoints, and the rest."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import wall_shares
from labkit.diagnosis.cause import cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import BESIDE_TRAINING, Finding, Measured, Remedy, gain_without
from labkit.diagnosis.hot_lines import Line
from labkit.diagnosis.wall_shares import WallShare, WallShares

VALIDATE_LESS = Remedy(
    "validate_less",
    "Validate in `with torch.inference_mode():`, after model.eval(): it needs no gradients. Then "
    "less often, on a part of the data, or with larger batches and workers for its DataLoader.",
    "lines",
)
SAVE_LESS = Remedy(
    "save_less",
    "Save checkpoints less often, or in a thread of its own from a copy on the CPU.",
    "lines",
)
LESS_BETWEEN = Remedy(
    "less_between",
    "Make that line cheaper, or run it less often: metrics, plots, a loader that is built anew.",
    "lines",
)
# Of a script's time; with underscores they are the causes
REMEDIES = {
    wall_shares.VALIDATION: VALIDATE_LESS,
    wall_shares.SAVING: SAVE_LESS,
    wall_shares.BETWEEN: LESS_BETWEEN,
}


@cause("periodic", *BESIDE_TRAINING)
def beside_training(evidence: Evidence) -> Finding | None:
    """A script spends much of its time on validation, checkpoints, or between its epochs.

    Cause "validation", "checkpoints" or "between_epochs", the largest, where it takes BESIDE of the
    time from the first batch to the last or more. It costs all of that.
    """
    whole = evidence.whole
    if whole.running <= 0:
        return None
    part = max(REMEDIES, key=whole.share)
    share = whole.share(part) / whole.running
    if share < limits.BESIDE:
        return None
    costliest = whole.costliest(part)
    call = f": `{costliest.call}`" if costliest.call else ""
    where = f"{call} ({costliest.place})" if costliest.place else ""
    measured = (
        Measured(f"of the time after the start is {part}{where}", share),
        Measured("is the training loop", _training(whole)),
    )
    return Finding(
        "host",
        part.replace(" ", "_"),
        share,
        measured,
        (REMEDIES[part],),
        _lines(costliest, share),
        at_most=gain_without(share),
    )


def of_the_whole(found: list[Finding], evidence: Evidence) -> list[Finding]:
    """Return findings with shares of a script's time, where one is of what is beside its training.

    What the others cost is a share of the training loop's time.
    """
    whole = evidence.known("whole")
    beside = [each for each in found if each.cause in BESIDE_TRAINING]
    if whole is None or not beside:
        return found
    rest = (each for each in found if each not in beside)
    training = _training(whole)
    return beside + [replace(each, lost_share=each.lost_share * training) for each in rest]


def _training(whole: WallShares) -> float:
    """Return the share of the time after the start that the training loop has."""
    return (whole.share(wall_shares.TRAINING) + whole.share(wall_shares.LOOP)) / whole.running


def _lines(part: WallShare, share: float) -> tuple[Line, ...]:
    file, _, number = part.place.rpartition(":")
    line = Line(file, int(number or 0), "<module>", share, "between", part.part, part.call)
    return (line,) if file else ()
