"""Which number formats an NVIDIA card has: advice names no other."""

from __future__ import annotations

import contextlib
import re

AMPERE = 8.0  # compute capability of the first cards with BF16 and TF32
# {16-bit format, the better first: that of the first cards whose Tensor Cores compute in it}
TENSOR_FORMATS = {"bf16": AMPERE, "fp16": 7.0}
NO_TENSOR_CORES = re.compile(r"GTX|\bT\d{3,4}\b|MX\d{3}")  # cards of 7.5 that have none


def version_of(capability: object) -> float | None:
    """Return a compute capability as a number; None where it is not known, or is no such."""
    with contextlib.suppress(ValueError):
        return float(str(capability))
    return None


def too_old_for(name: str, capability: object) -> str | None:
    """Return why an NVIDIA card has no BF16 or TF32; None where it has, or is of another maker."""
    if (version_of(capability) or AMPERE) >= AMPERE:
        return None
    return f"{name.upper()} needs compute capability {AMPERE} (Ampere); this card has {capability}"


def tensor_formats(name: str | None, capability: str | None) -> tuple[str, ...] | None:
    """Return the 16-bit formats, the better first, that a card's Tensor Cores compute in.

    BF16 needs compute capability 8.0 (Ampere), FP16 7.0 (Volta); see NVIDIA's CUDA programming
    guide, "Compute Capabilities". () for cards without Tensor Cores; None where it is not known.
    """
    version = version_of(capability)
    if version is None:
        return None
    if NO_TENSOR_CORES.search(name or ""):
        return ()
    return tuple(each for each, least in TENSOR_FORMATS.items() if version >= least)
