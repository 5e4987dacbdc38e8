"""What a reader's fix of a mystery brought, beside what the right cure brings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fix:
    """What a fix brought: samples/s over the mystery's; truthy where it brought most of the cure.

    Attributes:
        gain: Samples/s with the fix over those of the mystery; None where it was not measured.
        possible: The same of the right cure; None where there was nothing to cure.
        why: Why it was not measured.
    """

    gain: float | None = None
    possible: float | None = None
    why: str | None = None

    @property
    def share(self) -> float | None:
        """How much of what the cure brings the fix brought, 0 to 1; None where it brings nothing.

        It is the gained samples/s over those that the cure gains, both measured once here.
        """
        if self.gain is None or self.possible is None or self.possible <= 1:
            return None
        return min(1.0, max(0.0, (self.gain - 1) / (self.possible - 1)))

    def __bool__(self) -> bool:
        return self.share is not None and self.share >= 0.5

    def __repr__(self) -> str:
        if self.gain is None:
            return f"Not measured: {self.why}"
        text = f"{self.gain:.2f} times the mystery's samples/s"
        if self.possible is None:
            return f"{text}; it was healthy: there was nothing to cure."
        text += f"; the right cure brings {self.possible:.2f}"
        return f"{text}: {self.share:.0%} of it." if self.share is not None else f"{text}."
