"""A number with its range, as the diagnosis and the search expect it."""

from __future__ import annotations

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
