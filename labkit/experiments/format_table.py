"""The number formats of deep learning: range and rounding, from their bits. No torch here.

A format has a sign, `exponent_bits` and `mantissa_bits`; everything else follows (IEEE 754):
values are (1 + m / 2^mantissa_bits) * 2^e, or m / 2^mantissa_bits * 2^lowest below the normals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, by its bits."""

    name: str
    exponent_bits: int
    mantissa_bits: int  # stored: the leading 1 is not
    bytes: int  # what a number takes in memory
    source: str = "IEEE 754"

    @property
    def lowest(self) -> int:
        """The exponent of the smallest normal number."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def max(self) -> float:
        """The largest finite number: all mantissa bits set, under the highest exponent."""
        return (2 - 2.0**-self.mantissa_bits) * 2.0 ** (1 - self.lowest)

    @property
    def smallest_normal(self) -> float:
        """The smallest number that has all its digits."""
        return 2.0**self.lowest

    @property
    def smallest(self) -> float:
        """The smallest number above zero: one last mantissa bit, under the lowest exponent."""
        return 2.0 ** (self.lowest - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """The step from 1 to the next number; rounding is off by half of it at most."""
        return 2.0**-self.mantissa_bits

    @property
    def digits(self) -> float:
        """Decimal digits that a number keeps."""
        return (self.mantissa_bits + 1) * float(np.log10(2))

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Round to the nearest number of this format, ties to even; float64 in and out.

        What is too small becomes 0, what is too large becomes infinite.
        """
        values = np.asarray(values, dtype=np.float64)
        _, exponent = np.frexp(values)  # values = m * 2^exponent with 0.5 <= |m| < 1
        step = np.exp2(np.maximum(exponent - 1, self.lowest) - float(self.mantissa_bits))
        nearest = np.rint(values / step) * step
        too_large = np.abs(nearest) > self.max
        return np.where(too_large, np.copysign(np.inf, values), nearest)


FP32 = Format("fp32", 8, 23, 4)
TF32 = Format("tf32", 8, 10, 4, "NVIDIA A100 Tensor Core GPU Architecture whitepaper, 2020, p. 27")
FP16 = Format("fp16", 5, 10, 2)
BF16 = Format("bf16", 8, 7, 2, "Google Brain; the upper half of an FP32 number")

FORMATS = {each.name: each for each in (FP32, TF32, FP16, BF16)}


def formats_table() -> str:
    """The formats side by side, as text."""
    rows = [("format", "bits: exponent", "mantissa", "largest", "smallest normal", "step at 1")]
    for each in FORMATS.values():
        bits = (f"{each.exponent_bits}", f"{each.mantissa_bits}")
        sizes = (f"{each.max:.3g}", f"{each.smallest_normal:.2g}", f"{each.eps:.2g}")
        rows.append((each.name, *bits, *sizes))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (map(str.rjust, row, widths) for row in rows)
    return "\n".join("  ".join(line) for line in lines)
