"""Which part of a step got slower between two runs, beyond the noise of both."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labkit.analysis.facts import CLASSES

BLOCKS = 20  # neighbouring steps are alike, so stretches of the run are drawn anew, not steps
DRAWS = 1000
LEAST = 0.02  # of the step: smaller differences of a part are not worth a word


@dataclass(frozen=True)
class Part:
    """A part of the average step before and after, ms."""

    name: str  # "step", or a class of its time
    before_ms: float
    after_ms: float
    low_ms: float  # 95 % interval of the difference (bootstrap over stretches of both runs)
    high_ms: float
    slower: bool  # beyond the noise
    faster: bool

    @property
    def change_ms(self) -> float:
        """How much longer it takes, ms."""
        return self.after_ms - self.before_ms

    def __str__(self) -> str:
        what = CLASSES.get(self.name, "a step")
        return f"{what} {self.change_ms:+.2f} ms (95%: {self.low_ms:+.2f} to {self.high_ms:+.2f})"

    def to_dict(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def parts(before: Any, after: Any) -> tuple[Part, ...]:
    """Return the whole step and each class of its time; () where a run is too short.

    Steps of other batch sizes are scaled to the samples of `before`.
    """
    blocks = [_blocks(run) for run in (before, after)]
    if any(block is None for block in blocks):
        return ()
    samples = [run.samples / run.steps for run in (before, after)]
    old, new = blocks[0], blocks[1] * samples[0] / max(samples[1], 1e-9)
    rng = np.random.default_rng(0)
    drawn = [
        block[rng.integers(0, len(block), (DRAWS, len(block)))].mean(axis=1) for block in (old, new)
    ]
    low, high = np.percentile(drawn[1] - drawn[0], [2.5, 97.5], axis=0)
    least = LEAST * old.mean(axis=0)[0]
    names = ("step", *CLASSES)
    return tuple(
        Part(
            name, float(a), float(b), float(lo), float(hi),
            bool(lo > 0 and b - a > least), bool(hi < 0 and a - b > least),
        )
        for name, a, b, lo, hi in zip(names, old.mean(axis=0), new.mean(axis=0), low, high,
                                      strict=True)
    )  # fmt: skip


def _blocks(run: Any) -> np.ndarray | None:
    """Return (stretches, 1 + classes): ms per step, all of it and by class."""
    matrix = run.steps_ms
    if len(matrix) < 5:
        return None
    cut = np.array_split(matrix, min(BLOCKS, len(matrix)))
    rows = np.array([part.mean(axis=0) for part in cut])
    return np.column_stack([rows.sum(axis=1), rows])
