"""Peaks of some cards, from their makers' data sheets: only drawn, never used for a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_WWW = "https://www.nvidia.com/en-us/data-center"


@dataclass(frozen=True)
class Card:
    """Peaks of a card: dense (without sparsity), matrix products accumulated in FP32."""

    name: str
    gb_per_s: float  # of its memory, 10^9 byte/s
    tflop_per_s: dict[str, float] = field(default_factory=dict)  # per format
    source: str = ""


def _formats(fp32: float, tf32: float, half: float) -> dict[str, float]:
    return {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half}


_AMPERE = _formats(19.5, 156.0, 312.0)
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
# The data sheets of Hopper give Tensor Core rates with sparsity; dense is half of that
_HOPPER = _formats(67.0, 494.5, 989.5)
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_TURING = "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"

# Not in NVIDIA's whitepaper: 5,888 cores x 2 x 2.475 GHz, Tensor Cores at its rates for Ada (half
# the GeForce rate of FP16 when accumulated in FP32), 192 bit x 21 Gbit/s
_RTX_4070 = "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/rtx-4070-4070ti/"

# The names that the driver has for a card, without the brand in front
CARDS: list[tuple[tuple[str, ...], Card]] = [
    (("H200",), Card("H200 SXM", 4800.0, _HOPPER, f"{_WWW}/h200/")),
    (("H100 PCIe",), Card("H100 PCIe", 2000.0, _formats(51.0, 378.0, 756.5), _H100)),
    (("H100 80GB HBM3",), Card("H100 SXM", 3350.0, _HOPPER, f"{_WWW}/h100/")),
    (("A100-SXM4-40GB",), Card("A100 SXM 40 GB", 1555.0, _AMPERE, _A100)),
    (("A100-SXM4-80GB", "A100-SXM-80GB"), Card("A100 SXM 80 GB", 2039.0, _AMPERE, _A100)),
    (("A100-PCIE-40GB",), Card("A100 PCIe 40 GB", 1555.0, _AMPERE, _A100)),
    (("A100 80GB PCIe", "A100-PCIE-80GB"), Card("A100 PCIe 80 GB", 1935.0, _AMPERE, _A100)),
    (("V100-SXM2-16GB", "V100-SXM2-32GB"),
     Card("V100 SXM2", 900.0, {"fp32": 15.7, "fp16": 125.0}, _VOLTA)),
    (("V100-PCIE-16GB", "V100-PCIE-32GB"),
     Card("V100 PCIe", 900.0, {"fp32": 14.0, "fp16": 112.0}, _VOLTA)),
    (("T4",), Card("T4", 320.0, {"fp32": 8.1, "fp16": 65.0}, _TURING)),
    (("RTX 4090",), Card("GeForce RTX 4090", 1008.0, _formats(82.6, 82.6, 165.2), _ADA)),
    (("RTX 4080",), Card("GeForce RTX 4080", 716.8, _formats(48.7, 48.7, 97.5), _ADA)),
    (("RTX 4070",), Card("GeForce RTX 4070", 504.0, _formats(29.1, 29.1, 58.3), _RTX_4070)),
]  # fmt: skip


def card(name: str) -> Card | None:
    """Return the data sheet of the device with this name; None for a card that is not listed."""
    # The whole name counts: a Ti, a laptop's chip or a MIG instance is another product
    bare = re.sub("^(NVIDIA |Tesla |GeForce )+", "", name)
    return next((found for names, found in CARDS if bare in names), None)
