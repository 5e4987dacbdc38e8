"""A finding is data: what is wrong, how it was measured, what to change, what that would gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WORDS = {
    "input": "waiting for data",
    "transfer": "copies to the device",
    "launch": "the host: the device waits for its next piece of work",
    "memory_bandwidth": "memory traffic",
    "precision": "number format",
    "compute": "the device itself",
    "unsure": "no verdict",
}
NOTEBOOKS = {
    "02": "02 Sawtooth diagnosis",
    "03": "03 DataLoader tuning",
    "04": "04 Batch sizing",
    "05": "05 Mixed precision",
    "07": "07 torch.compile and kernels",
}


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time.

    Attributes:
        name: The bottleneck, one of DESIGN.md's names.
        cause: Which rule found it, in a word or two.
        evidence: What was measured, from which source, against which threshold.
        advice: What to change, what to expect of it, and which notebook teaches it.
        lost_share: Share of wall time (0 to 1) that would be saved if it were gone.
    """

    name: str
    cause: str
    evidence: str
    advice: str
    lost_share: float

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON types."""
        return {
            "name": self.name,
            "cause": self.cause,
            "evidence": self.evidence,
            "advice": self.advice,
            "lost_share": round(self.lost_share, 4),
        }


def advise(change: str, lost_share: float, notebook: str) -> str:
    """Write advice with its expected gain: from half of the loss recovered to all of it."""
    return f"{change} Expect {gain(lost_share)} throughput; notebook {NOTEBOOKS[notebook]}."


def gain(lost_share: float) -> str:
    """Throughput over today's if half of a loss, and if all of it, were recovered."""
    lost = min(max(lost_share, 0.0), 0.98)
    return f"{1 / (1 - lost / 2):.1f}x to {1 / (1 - lost):.1f}x the"
