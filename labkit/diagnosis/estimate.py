"""A number with its range, as the diagnosis and the search expect it, and workers with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Estimate(NamedTuple):
    """A throughput in samples/s, or a gain in times the throughput, with its range."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate scaled by a factor."""
        return Estimate(*(each * factor for each in self))

    def no_more_than(self, most: Estimate) -> Estimate:
        """Return the estimate with value and range cut at those of another one."""
        return Estimate(*map(min, self, most))

    def __str__(self) -> str:
        return f"{self.low:,.0f} to {self.high:,.0f}"


@dataclass(frozen=True)
class Workers:
    """A recommended number of loader workers, and what the simulation expects of it."""

    num_workers: int
    gain: Estimate  # the throughput with them over the run's own
    # That torch should compute with, so that the workers have cores; None: as many as it does now
    threads: int | None = None
