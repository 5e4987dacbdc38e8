"""Which number formats an NVIDIA card is too old for."""

from __future__ import annotations

AMPERE = 8.0  # compute capability of the first cards with BF16 and TF32


def too_old_for(name: str, capability: str | float | None) -> str | None:
    """Return why an NVIDIA card has no BF16 or TF32; None where it has, or is of another maker."""
    if not capability or float(capability) >= AMPERE:
        return None
    return f"{name.upper()} needs compute capability {AMPERE} (Ampere); this card has {capability}"
