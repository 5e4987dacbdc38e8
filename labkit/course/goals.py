"""Goals: the numbers that an answer to a challenge is judged by.

They compare with a baseline measured in the same session, never with an absolute time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A number that an answer is judged by, and the range in which it has to be."""

    what: str  # as the user sees it: "samples/s over the baseline's"
    at_least: float = -math.inf
    at_most: float = math.inf
    close: float = 0.0  # a miss by less than this share may be noise: it is measured again

    def met(self, value: float | None) -> bool:
        """Return whether `value` is in the range; a missing number is not."""
        return value is not None and self.at_least <= value <= self.at_most

    def near(self, value: float | None) -> bool:
        """Return whether `value` is in the range, or noise may have kept it out."""
        least = self.at_least * (1 - self.close)
        return value is not None and least <= value <= self.at_most

    def judged(self, value: float | None) -> str:
        """Say whether it is met, and what was measured."""
        measured = "nothing" if value is None else f"{value:.4g}"
        return f"{'yes' if self.met(value) else 'no'}: {self}; measured {measured}"

    def __str__(self) -> str:
        marks = {"at least": self.at_least, "at most": self.at_most}
        words = [f"{word} {mark:g}" for word, mark in marks.items() if math.isfinite(mark)]
        return f"{self.what}: {' and '.join(words)}"
