"""What a device can do at its best: by its data sheet, or as `lk.peaks` measured it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from labkit.results.measurements import MeasurementsData
from labkit.results.result import Result, Table
from labkit.results.templates import entries

ROOFS = ("bandwidth", "fp32", "tf32", "fp16", "bf16")  # what `lk.peaks` measures


def card(name: str) -> dict[str, Any] | None:
    """Return the data sheet of the device with this name; None for a card that is not listed.

    `gb_per_s` is of its memory (10^9 byte/s), `tflop_per_s` by number format: dense (without
    sparsity), products summed in FP32.
    """
    # The whole name counts: a Ti, a laptop's chip or a part of a card (MIG) is another product
    bare = re.sub("^(NVIDIA |Tesla |GeForce )+", "", name)
    sheets = ({"name": listed, **sheet} for listed, sheet in entries("cards.json").items())
    return next((sheet for sheet in sheets if bare in sheet["driver_names"]), None)


@dataclass(frozen=True)
class Peak:
    """What a device can do: prints as "312 TFLOP/s in BF16, 1555 GB/s, data sheet of A100 ..."."""

    flop_per_s: float  # dense, in `precision`
    byte_per_s: float | None  # of its memory
    precision: str
    source: str  # a data sheet, or where and how it was measured

    def __str__(self) -> str:
        memory = f", {self.byte_per_s / 1e9:.4g} GB/s" if self.byte_per_s else ""
        rate = rate_in_words(self.flop_per_s)
        return f"{rate} in {self.precision.upper()}{memory}, {self.source}"


def rate_in_words(flop_per_s: float) -> str:
    """Return a rate with its unit: "93.3 GFLOP/s"."""
    scale, unit = (1e12, "T") if flop_per_s >= 1e12 else (1e9, "G")
    return f"{flop_per_s / scale:.3g} {unit}FLOP/s"


@dataclass(frozen=True, repr=False)
class Peaks(Result):
    """What a device was measured to reach, on one day: of memory, and in each number format."""

    where: str  # the machine, and the day
    gb_per_s: float | None  # of its memory, 10^9 byte/s
    tflop_per_s: dict[str, float]  # 10^12 FLOP/s by format, of large matrix products
    missing: dict[str, str]  # why a rate was not measured

    @classmethod
    def of(cls, measured: MeasurementsData) -> Peaks:
        """Build from the rows that `lk.peaks` measured."""
        rows = measured.rows.set_index("of")
        rates = rows.per_s.dropna().astype(float).to_dict()
        memory = rates.pop("bandwidth", None)
        return cls(
            f"{measured.machine.line}, on {str(measured.utc)[:10]}",
            memory and memory / 1e9,
            {name: rate / 1e12 for name, rate in rates.items()},
            rows.error.dropna().to_dict(),
        )

    def table(self) -> Table:
        """Return a row for each rate."""
        rates = {name: rate_in_words(rate * 1e12) for name, rate in self.tflop_per_s.items()}
        memory = {"bandwidth": self.gb_per_s and f"{self.gb_per_s:,.4g} GB/s"}
        return Table([*(memory | rates | self.missing).items()], ("", "measured"), self.where)
