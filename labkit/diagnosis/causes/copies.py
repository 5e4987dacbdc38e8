"""The device waits for a copy from the host."""

from __future__ import annotations

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.cause import cause
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.findings import Finding, Measured, Remedy, bound, remedy
from labkit.diagnosis.hot_lines import Lines


def sends_floats(evidence: Evidence) -> bool:
    """Return whether batches may be of floats, which fewer bytes could stand for."""
    return evidence.batch.known("dtype") in (None, "float32", "float64")


@remedy
def one_block(evidence: Evidence) -> Remedy | None:
    """A CPU, which copies within its own memory."""
    block = Remedy("one_block", "Send one contiguous block per batch.", "copies")
    return block if evidence.kind == "cpu" else None


@remedy
def pin_memory(evidence: Evidence) -> Remedy | None:
    """A GPU whose batches are in pageable memory, or whose own code waits for their copies."""
    knobs = evidence.knobs
    if evidence.kind != "gpu" or knobs.get("non_blocking"):
        return None
    is_pinned = bool(knobs.get("pin_memory"))
    return Remedy(
        "not_waited_for" if is_pinned else "pin_memory",
        "Send one contiguous block per batch from pinned memory: pin_memory=True, then "
        "non_blocking=True, which does nothing for a batch in a class of your own that has no "
        "pin_memory().",
        "copies",
        {"pin_memory": True, "non_blocking": True} if not is_pinned else {"non_blocking": True},
        cost="locked host memory for the batches kept ready",
    )


@remedy
def fewer_bytes_over(evidence: Evidence) -> Remedy | None:
    """Batches of floats."""
    if evidence.kind != "gpu" or not sends_floats(evidence):
        return None
    return Remedy(
        "fewer_bytes_over",
        "Copy fewer bytes: images as uint8, a quarter of float32, other numbers as int16 or "
        "float16, half of it; convert and normalise them on the device.",
        "copies",
    )


@remedy
def copy_ahead(evidence: Evidence) -> Remedy | None:
    """A bench whose batches are in pinned memory, and that copies none ahead."""
    knobs = evidence.knobs
    if evidence.kind != "gpu" or not knobs.get("pin_memory") or knobs.get("prefetch_to_device"):
        return None
    return Remedy(
        "copy_ahead",
        "Copy the next batch under the compute of this one (prefetch_to_device=True).",
        "copies",
        {"prefetch_to_device": True},
        cost="device memory for one more batch",
    )


@cause("copies", "copies")
def copies(evidence: Evidence) -> Finding:
    """The device waits for a copy from the host. It costs the share of the time spent so."""
    lost = evidence.copy_share
    seen = Measured("of the time the device waits for a copy", lost, by=evidence.source)
    remedies = (one_block, copy_ahead, pin_memory)
    return Finding("transfer", "copies", lost, (seen,), remedies, at_most=bound(lost))


def lost_in_body(evidence: Evidence, share: float) -> float:
    """Return what a share of a loop's body may cost: nothing while the device works all the same.

    That is `certain_share` of the time.
    """
    return min(share * evidence.compute_share, max(1 - evidence.card.certain_share, 0.0))


def sampled_by(evidence: Evidence) -> str:
    """Say by what a loop's body was measured."""
    return f"{evidence.loop.lines.samples} sampled stacks, {evidence.source}"


def copying_in(lines: Lines) -> np.ndarray:
    """Return the mask of the samples at a copy in the body."""
    return lines.in_body & (lines.kind == "copy")


def lost_to_copies(evidence: Evidence) -> tuple[float, float]:
    """Return the share of time that the host stands at a copy to a GPU with an empty queue.

    With it comes how many bytes a second move meanwhile. A copy that blocks also waits for what the
    device has queued: where few bytes move, that is all that it does, and the share is 0.
    """
    lines = evidence.loop.lines
    if evidence.kind != "gpu" or not evidence.compute_share:
        return 0.0, 0.0
    # What had been issued in full is done while the host waits for its batch, then at the copy
    behind_the_queue = max(evidence.card.ahead_share - evidence.host_wait_share, 0.0)
    at_copies = lines.part_of("body", copying_in(lines))
    copying = at_copies * (1 - evidence.host_wait_share) - behind_the_queue
    copying_s = copying / evidence.compute_share * evidence.compute_us / 1e6
    moved = evidence.batch.known("bytes") or 0.0
    if copying <= 0 or moved < limits.COPIES_BYTES_S * copying_s:
        return 0.0, 0.0
    lost = min(copying, lost_in_body(evidence, at_copies))
    return lost, moved / copying_s


@cause("copies")
def copies_in_the_body(evidence: Evidence) -> Finding | None:
    """The host stands at a copy to a GPU, in a watched loop: cause "copies" as well.

    It is found where the batches move at COPIES_BYTES_S or more, and costs the share of the stacks
    at the copy. Fewer bytes are the first remedy where copies take COPIES_LEAD of the time: what
    pinned memory could hide is shorter then.
    """
    lines = evidence.loop.lines
    lost, bytes_s = lost_to_copies(evidence)
    if not lost:
        return None
    worst = lines.rows(copying_in(lines))[:3]
    seen = f"of the time the host waits for the copy of a batch to the device, in {worst[0].what}"
    rate = f"the batches' {evidence.batch.bytes / 2**20:.0f} MiB move at {bytes_s / 1e9:.1f} GB/s"
    pins = evidence.knobs.get("pin_memory") or not evidence.has_workers
    remedies = (pin_memory, fewer_bytes_over)
    if lost > limits.COPIES_LEAD and not pins and sends_floats(evidence):
        remedies = (fewer_bytes_over,)  # pinned memory would make such a loop slower
    return Finding(
        "transfer",
        "copies",
        lost,
        (Measured(seen, lost, by=sampled_by(evidence)), Measured(rate)),
        remedies,
        lines=worst,
        at_most=bound(lost),
    )
