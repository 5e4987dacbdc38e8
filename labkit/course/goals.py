"""Goals: the numbers that an answer to a challenge is judged by.

They compare with a baseline measured in the same session, never with an absolute time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Goal:
    """A number that an answer is judged by, and the range in which it has to be."""

    what: str  # as the user sees it: "samples/s over the baseline's"
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0  # a result within this share of a mark may be noise: it is measured again
    needs_baseline: bool = False  # whether its measure compares with the run of the given spec

    def met(self, value: float | None) -> bool:
        """Return whether `value` is in the range; a missing number is not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether noise could have decided."""
        if value is None:
            return False
        marks = (self.at_least, self.at_most)
        return any(abs(value - mark) < self.close * abs(mark) for mark in marks)

    def judged(self, values: list[float | None]) -> str:
        """Say whether it is met, and what was measured: the median, and the range of repeats."""
        known = [value for value in values if value is not None]
        measured = f"{median(known):.4g}" if known else "nothing"
        if len(set(known)) > 1:
            measured += f" ({min(known):.4g} to {max(known):.4g})"
        met = sum(map(self.met, values))
        answer = {0: "no", len(values): "yes"}.get(met, "unclear")
        return f"{answer}: {self}; measured {measured}"

    def __str__(self) -> str:
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"
