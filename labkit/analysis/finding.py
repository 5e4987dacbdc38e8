"""A finding is data: what is wrong, how it was measured, what to change, what that would gain."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labkit.analysis.thresholds import WORTH_NAMING

BOTTLENECKS = {  # every name that a diagnosis can give
    "input": "waiting for data",
    "transfer": "copies to the device",
    "launch": "the host: the device waits for its next piece of work",
    "memory_bandwidth": "memory traffic",
    "precision": "number format",
    "communication": "exchanging gradients",
    "straggler": "one rank is slower than the others",
    "compute": "the device itself",
    "unsure": "no verdict",
}
LESSONS = {  # the notebook that teaches the cure
    "input": "notebook 03 DataLoader tuning",
    "transfer": "notebook 03 DataLoader tuning",
    "launch": "notebook 07 torch.compile and kernels",
    "memory_bandwidth": "notebook 07 torch.compile and kernels",
    "precision": "notebook 05 Mixed precision",
    "communication": "notebook 09 Beyond one GPU",
}


@dataclass(frozen=True)
class Finding:
    """One thing that costs device time, or the reason why no verdict is given."""

    name: str  # the bottleneck, one of `BOTTLENECKS`
    cause: str  # which rule found it, in a word or two
    evidence: str  # what was measured, by which instrument, against which threshold
    advice: str  # what to change, what to expect of it, and which notebook teaches it
    lost_share: float = 0.0  # of wall time (0 to 1), that would be saved if it were gone
    rank: int | None = None  # of several ranks, the one to blame

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return asdict(self) | {"lost_share": round(self.lost_share, 4)}


def loss(
    name: str, cause: str, lost: float, seen: str, source: str, change: str, rank: int | None = None
) -> Finding:
    """Return a loss as a finding; its expected gain is from half of it recovered to all of it."""
    part = min(max(lost, 0.0), 0.98)
    gain = f"{1 / (1 - part / 2):.1f}x to {1 / (1 - part):.1f}x"
    lesson = f"; {LESSONS[name]}" if name in LESSONS else ""
    evidence = f"{seen} ({source}; threshold {WORTH_NAMING[name]:.0%})."
    advice = f"{change} Expect {gain} the throughput{lesson}."
    return Finding(name, cause, evidence, advice, lost, rank)
