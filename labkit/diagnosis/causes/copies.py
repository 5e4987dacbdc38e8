"""The device waits for a copy from the host."""

from __future__ import annotations

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import LOSS, cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Remedy, loss

ONE_BLOCK = Remedy("one_block", "Send one contiguous block per batch.", "copies")
FEWER_BYTES = Remedy(
    "fewer_bytes_over",
    "Copy fewer bytes: images as uint8, a quarter of float32, other numbers as int16 or float16, "
    "half of it; convert and normalise them on the device.",
    "copies",
)
COPY_AHEAD = Remedy(
    "copy_ahead",
    "Copy the next batch under the compute of this one (prefetch_to_device=True).",
    "copies",
    {"prefetch_to_device": True},
)
PIN_MEMORY = Remedy(
    "pin_memory",
    "Send one contiguous block per batch from pinned memory: pin_memory=True, then "
    "non_blocking=True, which does nothing for a batch in a class of your own that has no "
    "pin_memory().",
    "copies",
    {"pin_memory": True, "non_blocking": True},
)


@cause(LOSS)
def copies(evidence: Evidence) -> Finding:
    """The device waits for a copy from the host: cause "copies".

    It costs the share of the time spent so.
    """
    remedies = (PIN_MEMORY,)
    if evidence.kind == "cpu":
        remedies = (ONE_BLOCK,)
    elif evidence.knobs.get("non_blocking"):
        remedies = () if evidence.knobs.get("prefetch_to_device") else (COPY_AHEAD,)
    seen = "of the time the device waits for a copy"
    return loss("transfer", "copies", evidence.copy_share, seen, evidence.source, *remedies)


def lost_in_body(evidence: Evidence, share: float) -> float:
    """Return what a share of a loop's body may cost: nothing while the device works all the same.

    That is `certain_share` of the time.
    """
    return min(share * evidence.compute_share, max(1 - evidence.card.certain_share, 0.0))


def sampled_by(evidence: Evidence) -> str:
    """Say by what a loop's body was measured."""
    return f"{len(evidence.loop.lines)} sampled stacks, {evidence.source}"


@cause(LOSS)
def copies_in_the_body(evidence: Evidence) -> Finding | None:
    """The host stands at a copy to a GPU with an empty queue, in a watched loop: "copies" as well.

    A copy that blocks also waits for what the device has queued: where the batches move at less
    than COPIES_BYTES_S, that is all that it does. It costs the share of the stacks at the copy.
    Where copies take COPIES_LEAD of the time, fewer bytes are the remedy of floats: what pinned
    memory could hide is shorter then, and one more thread makes such a loop slower.
    """
    lines = evidence.loop.lines
    if evidence.kind != "gpu" or not evidence.compute_share:
        return None
    at_copies = lines.mask("body") & (lines.frame.kind == "copy")
    part = lines.frame.of_phase[at_copies].sum()
    copying = part * (1 - evidence.host_wait_share)
    copying_s = copying / evidence.compute_share * evidence.compute_us / 1e6
    moved = evidence.batch.bytes
    if not copying or moved < limits.COPIES_BYTES_S * copying_s:
        return None
    lost = min(copying, lost_in_body(evidence, part))
    worst = lines.rows(at_copies)[:3]
    seen = f"of the time the host waits for the copy of a batch to the device, in {worst[0].what}"
    seen += f" ({moved / 2**20:.0f} MiB a batch, at {moved / copying_s / 1e9:.1f} GB/s)"
    are_floats = evidence.batch.known("dtype") in (None, "float32", "float64")
    remedy = FEWER_BYTES if lost > limits.COPIES_LEAD and are_floats else PIN_MEMORY
    return loss("transfer", "copies", lost, seen, sampled_by(evidence), remedy, lines=worst)
