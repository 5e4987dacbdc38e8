"""What fusing elementwise operations gains: predicted from the bytes moved, and measured.

An elementwise operation does a handful of FLOPs a number and moves 4 to 12 bytes for it: past the
caches its time is its bytes over the memory's bandwidth. Fused, the intermediate arrays are
never written and never read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from labkit.spec import NOISY


def arrays_moved(reads: list[int], writes: int = 1, write_cost: float = 1.0) -> float:
    """Count the array passes of operations one after another.

    Args:
        reads: Per operation, how many arrays it reads.
        writes: How many arrays each operation writes.
        write_cost: Passes that a write costs. 1 counts what the program asks for; 2 is a CPU with
            write-allocate, which reads a cache line before it stores to it (Intel 64 and IA-32
            Optimization Reference Manual, on write-back memory and non-temporal stores).
    """
    return sum(reads) + write_cost * writes * len(reads)


def predicted_gain(reads: list[int], inputs: int, write_cost: float = 1.0) -> float:
    """Predict how many times as fast one fused pass is, from the bytes alone.

    Args:
        reads: Per eager operation, how many arrays it reads.
        inputs: How many different arrays the whole expression reads.
        write_cost: As for `arrays_moved`.
    """
    return arrays_moved(reads, 1, write_cost) / arrays_moved([inputs], 1, write_cost)


def break_even_steps(compile_s: float, eager_s: float, compiled_s: float) -> float | None:
    """After how many steps the compile time is paid back; None where a step gains nothing."""
    saved = eager_s - compiled_s
    return compile_s / saved if saved > 0 else None


@dataclass(frozen=True)
class Gain:
    """One chain of operations: what fusing was predicted to gain, and what it gained."""

    chain: str
    array_mib: float
    predicted: float  # from the bytes as counted
    predicted_write_allocate: float  # where every write first reads
    measured: float | None  # median over the rounds; None where nothing could be compiled
    spread: float | None = None  # IQR over median, of the rounds
    past_cache: bool | None = None  # whether the arrays are well past it; None where unknown

    @property
    def noisy(self) -> bool:
        """Whether the rounds differ so much that the gain means little."""
        return self.spread is not None and self.spread > NOISY

    @property
    def off(self) -> float | None:
        """Measured over predicted."""
        return None if self.measured is None else self.measured / self.predicted

    def __str__(self) -> str:
        measured = "not measured" if self.measured is None else f"{self.measured:.2f}x"
        off = "" if self.off is None else f", ratio {self.off:.2f}"
        off += " (not past the last cache)" if self.past_cache is False else ""
        off += f" NOISY: rounds spread {self.spread:.0%}" if self.noisy else ""
        return (
            f"{self.chain:12} {self.array_mib:9.4g} MiB an array: predicted {self.predicted:.2f}x "
            f"({self.predicted_write_allocate:.2f}x with write-allocate), measured {measured}{off}"
        )


def gains(measured: Any) -> list[Gain]:
    """Return the gain of every chain and size in the measurements of the experiment "fusion"."""
    found = []
    for eager in measured.where("eager"):
        chain, size = eager.case["chain"], eager.case["mib"]
        fused = measured.where("fused", chain=chain, mib=size)
        facts = measured.one("arrays", chain=chain).values
        reads, inputs = facts["reads"], facts["inputs"]
        found.append(
            Gain(
                chain,
                size,
                predicted_gain(reads, inputs),
                predicted_gain(reads, inputs, write_cost=2),
                fused[0].values.get("gain") if fused else None,
                fused[0].values.get("spread") if fused else None,
            )
        )
    return found


def largest(measured: Any) -> list[Gain]:
    """Return the gains at the largest arrays: those past the caches."""
    every = gains(measured)
    size = max((gain.array_mib for gain in every), default=0)
    return [
        replace(gain, past_cache=measured.one("arrays", chain=gain.chain).values.get("past cache"))
        for gain in every
        if gain.array_mib == size
    ]
