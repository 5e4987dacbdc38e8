"""What the makers of some cards promise: peaks from data sheets, each with its source.

Only drawn as a dashed line, and never used for a verdict: what counts is what was measured. A card
that is not listed has no peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"


@dataclass(frozen=True)
class Card:
    """Peaks of a card: dense (without sparsity), matrix products accumulated in FP32."""

    name: str
    gb_per_s: float  # of its memory, 10^9 byte/s
    tflop_per_s: dict[str, float] = field(default_factory=dict)  # per format
    source: str = ""


_AMPERE = {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0}
_A100 = f"{NVIDIA}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
# The data sheets of Hopper give Tensor Core rates with sparsity; dense is half of that
_HOPPER = {"fp32": 67.0, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5}
_VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_TURING = "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"

# The words that all have to be in the device's name, as the driver tells it; the first match counts
CARDS: list[tuple[tuple[str, ...], Card]] = [
    (("H200",), Card("H200 SXM", 4800.0, _HOPPER, "https://www.nvidia.com/en-us/data-center/h200/")),
    (("H100", "PCIe"), Card(
        "H100 PCIe", 2000.0, {"fp32": 51.0, "tf32": 378.0, "fp16": 756.5, "bf16": 756.5},
        "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet")),
    (("H100", "80GB HBM3"), Card(
        "H100 SXM", 3350.0, _HOPPER, "https://www.nvidia.com/en-us/data-center/h100/")),
    (("A100", "SXM4-40GB"), Card("A100 SXM 40 GB", 1555.0, _AMPERE, _A100)),
    (("A100", "SXM4-80GB"), Card("A100 SXM 80 GB", 2039.0, _AMPERE, _A100)),
    (("A100", "PCIe-40GB"), Card("A100 PCIe 40 GB", 1555.0, _AMPERE, _A100)),
    (("A100", "PCIe"), Card("A100 PCIe 80 GB", 1935.0, _AMPERE, _A100)),
    (("V100", "SXM2"), Card("V100 SXM2", 900.0, {"fp32": 15.7, "fp16": 125.0}, _VOLTA)),
    (("V100", "PCIE"), Card("V100 PCIe", 900.0, {"fp32": 14.0, "fp16": 112.0}, _VOLTA)),
    (("Tesla T4",), Card(
        "T4", 320.0, {"fp32": 8.1, "fp16": 65.0}, _TURING)),
    (("RTX 4090",), Card(
        "GeForce RTX 4090", 1008.0,
        {"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2}, _ADA)),
]  # fmt: skip


def card(name: str) -> Card | None:
    """Return the data sheet of the device with this name; None for a card that is not listed.

    A laptop's or a cut-down card is another product, whatever its name begins with.
    """
    if any(word in name for word in ("Laptop", "MIG", "NVL", " D", "vGPU")):
        return None
    for words, found in CARDS:
        if all(word in name for word in words):
            return found
    return None
