"""Which number formats an NVIDIA card has: advice names no other."""

from __future__ import annotations

import re

AMPERE = 8.0  # compute capability of the first cards with BF16 and TF32
# Cards whose Tensor Cores compute in FP16 alone, and cards without Tensor Cores
FP16_ONLY = re.compile(r"V100|TITAN V|T4\b|TITAN RTX|RTX (?:20\d\d|[3-8]000\b(?! Ada))")
NO_TENSOR_CORES = re.compile(r"P100|P40|P4\b|GTX|TITAN X|K80|K40|M40|M60|\bT\d{3,4}\b|MX\d{3}")
CAPABILITY = re.compile(r"\d+(\.\d+)?")
BOTH = re.compile(r"A100|A800|A10\b|A30|A40|RTX (?:[345]0\d\d|A\d000)|[HB]\d00|L4|L40|GB\d00")


def too_old_for(name: str, capability: str | float | None) -> str | None:
    """Return why an NVIDIA card has no BF16 or TF32; None where it has, or is of another maker."""
    if not capability or float(capability) >= AMPERE:
        return None
    return f"{name.upper()} needs compute capability {AMPERE} (Ampere); this card has {capability}"


def tensor_formats(name: str | None, capability: str | None) -> tuple[str, ...] | None:
    """Return the 16-bit formats, the better first, that a card's Tensor Cores compute in.

    BF16 needs compute capability 8.0 (Ampere), FP16 7.0 (Volta); see NVIDIA's CUDA programming
    guide, "Compute Capabilities". () for cards without Tensor Cores;
    None where neither its capability nor its name tells.
    """
    name = name or ""
    found = CAPABILITY.fullmatch(capability or "")
    version = float(found[0]) if found else None
    if NO_TENSOR_CORES.search(name) or (version is not None and version < 7):
        return ()
    if too_old_for("bf16", version) or (version is None and FP16_ONLY.search(name)):
        return ("fp16",)
    return ("bf16", "fp16") if version is not None or BOTH.search(name) else None
