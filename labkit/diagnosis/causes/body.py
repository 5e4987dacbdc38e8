"""What a script does besides training: copies, other work in its loop and beside it, growth."""

from __future__ import annotations

from functools import partial

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis import wall_shares
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import LOSS, WARNING, Finding, Remedy, cause, loss
from labkit.diagnosis.hot_lines import Line

# -- copies to the device ------------------------------------------------------------------------

ONE_BLOCK = Remedy("one_block", "Send one contiguous block per batch.")
FEWER_BYTES = Remedy(
    "fewer_bytes_over",
    "Copy fewer bytes: images as uint8, a quarter of float32, other numbers as int16 or float16, "
    "half of it; convert and normalise them on the device.",
)
COPY_AHEAD = Remedy(
    "copy_ahead",
    "Copy the next batch under the compute of this one (prefetch_to_device=True).",
    {"prefetch_to_device": True},
)
PIN_MEMORY = Remedy(
    "pin_memory",
    "Send one contiguous block per batch from pinned memory: pin_memory=True, then "
    "non_blocking=True, which does nothing for a batch in a class of your own that has no "
    "pin_memory().",
    {"pin_memory": True, "non_blocking": True},
)


@cause(LOSS, "copies")
def copies(evidence: Evidence) -> Finding:
    """The device waits for a copy from the host: cause "copies".

    It costs the share of the time spent so.
    """
    remedies = (PIN_MEMORY,)
    if evidence.kind == "cpu":
        remedies = (ONE_BLOCK,)
    elif evidence.knobs.get("non_blocking"):
        remedies = () if evidence.knobs.get("prefetch_to_device") else (COPY_AHEAD,)
    lost, by = evidence.copy_share, evidence.source
    seen = "of the time the device waits for a copy"
    return loss("transfer", "symptoms/copies.md", lost, seen, by, *remedies)


def lost_in_body(evidence: Evidence, share: float) -> float:
    """Return what a share of a loop's body may cost: nothing while the device works all the same.

    That is `certain_share` of the time.
    """
    return min(share * evidence.compute_share, max(1 - evidence.certain_share, 0.0))


def sampled_by(evidence: Evidence) -> str:
    """Say by what a loop's body was measured."""
    return f"{len(evidence.lines)} sampled stacks, {evidence.source}"


@cause(LOSS, "copies")
def copies_in_the_body(evidence: Evidence) -> Finding | None:
    """The host stands at a copy to a GPU with an empty queue, in a watched loop: "copies" as well.

    A copy that blocks also waits for what the device has queued: where the batches move at less
    than COPIES_BYTES_S, that is all that it does. It costs the share of the stacks at the copy.
    Where copies take COPIES_LEAD of the time, fewer bytes are the remedy of floats: what pinned
    memory could hide is shorter then, and one more thread makes such a loop slower.
    """
    lines, moved, working = evidence.lines, evidence.batch_bytes, 1 - evidence.host_wait_share
    if evidence.kind != "gpu" or not evidence.compute_share:
        return None
    at_copies = lines.mask("body") & (lines.frame.kind == "copy")
    part = lines.frame.of_phase[at_copies].sum()
    copying = part * working
    copying_s = copying / evidence.compute_share * evidence.compute_us / 1e6
    if not copying or moved < limits.COPIES_BYTES_S * copying_s:
        return None
    lost = min(copying, lost_in_body(evidence, part))
    worst = lines.rows(at_copies)[:3]
    seen = f"of the time the host waits for the copy of a batch to the device, in {worst[0].what}"
    seen += f" ({moved / 2**20:.0f} MiB a batch, at {moved / copying_s / 1e9:.1f} GB/s)"
    are_floats = evidence.known("batch_dtype") in (None, "float32", "float64")
    remedy = FEWER_BYTES if lost > limits.COPIES_LEAD and are_floats else PIN_MEMORY
    by = sampled_by(evidence)
    return loss("transfer", "symptoms/copies.md", lost, seen, by, remedy, lines=worst)


# -- other work in the body ----------------------------------------------------------------------

VECTORISE = Remedy(
    "vectorise",
    "Vectorise it, do it in tensor operations, or take it out of the loop. What prepares a batch "
    "belongs in the dataset or in collate_fn, where the loader's workers do it.",
)
LOG_RARELY = Remedy(
    "log_rarely",
    "Do it in every 50th step or less, buffered and without fsync, or in a thread of its own.",
)
WAIT_ELSEWHERE = Remedy("wait_elsewhere", "Do it in a thread of its own, or between epochs.")
FEED_THE_OTHER = Remedy(
    "feed_the_other",
    "Make that DataLoader once, outside the loop, with workers of its own: num_workers=2 to begin "
    "with, and persistent_workers=True. Or read it less often: a validation every few epochs.",
)
BESIDES = {  # what a body does besides training, by the part of it; and what helps
    "python": ("Python", VECTORISE),
    "logging": ("logging and files", LOG_RARELY),
    "waiting": ("waiting: for a sleep, a lock, a network or another program", WAIT_ELSEWHERE),
    "loader": ("waiting for another DataLoader", FEED_THE_OTHER),
}


def period(steps: np.ndarray, share: np.ndarray, spent: np.ndarray) -> int | None:
    """Return how many steps lie between the long ones; None where these do not come regularly.

    Of a kind of work `steps` (samples,) is when it was sampled, `share` what each sample stands
    for; `spent` (steps,) s is how long each body took.
    """
    long = np.flatnonzero(spent > limits.LONG * np.median(spent))
    gaps = np.diff(long)
    every = int(np.median(gaps)) if len(gaps) else 0
    falls_there = share[np.isin(steps, long)].sum() >= limits.IN_LONG_STEPS * share.sum()
    is_regular = np.mean(np.abs(gaps - every) <= 1) >= limits.REGULAR if every > 2 else False
    return every if falls_there and is_regular else None


def in_the_body(evidence: Evidence, part: str) -> Finding | None:
    """The body of a watched loop does something besides training: a `part` of `BESIDES`.

    Cause: the part, as "python", "logging" or "loader"; "periodic" where most of it falls into
    regular long steps. It costs its share of the sampled stacks; on a GPU, which may work meanwhile
    on what is queued, at most that.
    """
    lines, drift = evidence.lines, kept_graphs(evidence)
    lost = lost_in_body(evidence, evidence.body.get(part, 0.0))
    if not lost or (drift and drift.lost_share > lost / 2):
        return None  # it may be what makes the steps longer and longer: said there
    mask = lines.mask("body", part)
    there = lines.frame[mask]
    every = period(there.step.to_numpy(), there.share.to_numpy(), evidence.body_s)
    words, remedy = BESIDES[part]
    rows = lines.rows(mask)[:3]
    seen = f"of the time the body of the loop is not training but {words}, most of it in "
    seen += rows[0].what + (f", every {every} steps" if every else "")
    page, name = "symptoms/loop-body.md", part
    if every:
        page, name = "symptoms/periodic.md", "periodic"
    by = sampled_by(evidence)
    return loss("host", page, lost, seen, by, remedy, cause=name, lines=rows)


for _part in BESIDES:
    cause(LOSS, _part, "periodic")(partial(in_the_body, part=_part))


# -- steps that grow, and what is kept ----------------------------------------------------------

KEEP_NUMBERS = Remedy(
    "keep_numbers",
    "Keep numbers instead of tensors with the graphs that made them: add loss.item(), append "
    "loss.detach(); and call backward() on the loss of this step alone.",
)


@cause(LOSS, "drift")
@cause(WARNING, "drift")
def kept_graphs(evidence: Evidence) -> Finding | None:
    """A variable keeps the graphs of ever more steps, which ends in no memory: cause "drift".

    It costs what the later steps take beyond the first, where they take longer and longer.
    """
    if not evidence.variables:
        return None
    variable = evidence.variables[0]
    where = variable["file"], variable["line"], variable["function"]
    line = Line(*where, 0.0, "body", "python", variable["name"])
    seen = f"`{variable['name']}` in {line.address} grew from {variable['before']} to "
    seen += f"{variable['after']}, and it keeps tensors with the graphs that made them."
    if evidence.growth > 1:
        seen += f" The last steps take {evidence.growth:.1f}x as long as the first."
    return Finding(
        "host",
        "symptoms/growth.md",
        lost_share=evidence.grown_share,
        evidence=seen,
        remedies=(KEEP_NUMBERS,),
        lines=(line,),
    )


# -- beside the loop -----------------------------------------------------------------------------

REMEDIES = {  # by the part of a script's time; with underscores these are the causes
    wall_shares.VALIDATION: Remedy(
        "validate_less",
        "Validate in `with torch.inference_mode():`, after model.eval(): it needs no gradients. "
        "Then less often, on a part of the data, or with larger batches and workers for its "
        "DataLoader.",
    ),
    wall_shares.BETWEEN: Remedy(
        "less_between",
        'Look at the lines whose phase is "between", and run them less often: checkpoints, '
        "metrics, plots, a loader that is built anew.",
    ),
}


@cause(LOSS, "validation", "between_epochs")
def beside_training(evidence: Evidence) -> Finding | None:
    """A script spends much of its time on validation, or between its epochs.

    Cause "validation" or "between_epochs", the larger, where it takes BESIDE of the time from the
    first batch to the last or more. It costs all of that.
    """
    whole = evidence.whole
    part = max(REMEDIES, key=whole.share)
    outside = whole.share(wall_shares.BEFORE, wall_shares.AFTER)
    share = whole.share(part) / max(1 - outside, 1e-9)
    if share < limits.BESIDE:
        return None
    place = next(each["place"] for each in whole.parts if each["part"] == part)
    seen = f"of the time after the start is {part}{f' ({place})' if place else ''}"
    page, by, name = "symptoms/periodic.md", "passes over loaders", part.replace(" ", "_")
    return loss("host", page, share, seen, by, REMEDIES[part], cause=name)
