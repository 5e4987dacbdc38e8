"""Remedies for copies to the device."""

from __future__ import annotations

from dataclasses import replace

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.remedies import Fit, Remedy

ONE_BLOCK = Remedy("one_block", "Send one contiguous block per batch.", "copies", on="cpu")


LARGE = 2**20  # bytes of a batch, from which fewer of them are worth a change
SMALLEST_PX = 24  # of an image's sides
CHANNELS = (1, 3, 4)
SCALED = (
    "# in the loop, once the dataset returns images as uint8 (0 to 255), not scaled:\n"
    "if images.dtype == torch.uint8:\n"
    "    images = images.to(device, non_blocking=True).float() / 255\n"
)


def sends_floats(evidence: Evidence) -> Fit | None:
    """Fit batches of floats, with lines for the user's own loop where they are images."""
    if evidence.batch.dtype not in (None, "float32", "float64"):
        return None
    is_told = sends_images(evidence) and not evidence.trainer
    return Fit(words={"lines": SCALED if is_told else ""})


def sends_images(evidence: Evidence) -> bool:
    """Fit large batches of float32 that have the shape of images: (batch, channels, y, x)."""
    batch = evidence.batch
    shape = batch.shape or ()
    if batch.dtype != "float32" or (batch.bytes or 0) < LARGE or len(shape) != 4:
        return False
    return shape[1] in CHANNELS and min(shape[2:]) >= SMALLEST_PX


def bytes_first(evidence: Evidence, share: float) -> bool:
    """Return whether a copy that takes this share leaves a thread that pins too little to hide."""
    pins = bool(evidence.knobs.get("pin_memory")) or not evidence.num_workers
    return share > limits.COPIES_LEAD and not pins and sends_floats(evidence) is not None


PINNED = Remedy(
    "pin_memory",
    "Send one contiguous block per batch from pinned memory: pin_memory=True, then "
    "non_blocking=True.",
    "copies",
    sets={"pin_memory": True, "non_blocking": True},
    on="gpu",
    cost="locked host memory for the batches kept ready",
)


def copies_block(evidence: Evidence) -> bool:
    """Fit a loop whose batches are in pinned memory, and whose own code copies them."""
    return bool(evidence.knobs.get("pin_memory")) and not evidence.trainer


NOT_WAITED_FOR = Remedy(
    "not_waited_for",
    "Start the copy of a batch without waiting for it: non_blocking=True. It does nothing for a "
    "batch in a class of your own that has no pin_memory(): that is not pinned.",
    "copies",
    copies_block,
    on="gpu",
    code="batch = batch.to(device, non_blocking=True)\n",
)
NON_BLOCKING = replace(NOT_WAITED_FOR, key="non_blocking", sets={"non_blocking": True}, code="")
FEWER_BYTES_OVER = Remedy(
    "fewer_bytes_over",
    "Copy fewer bytes: images as uint8, a quarter of float32, other numbers as int16 or float16, "
    "half of it; convert and normalise them on the device.",
    "copies",
    sends_floats,
    on="gpu",
    code="$lines",
)
OVERLAPPED = Remedy(
    "copy_ahead",
    "Copy the next batch under the compute of this one (prefetch_to_device=True).",
    "copies",
    fits=lambda evidence: bool(evidence.knobs.get("pin_memory")),
    sets={"prefetch_to_device": True},
    on="gpu",
    cost="device memory for one more batch",
)
