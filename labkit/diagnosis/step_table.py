"""The measured steps of a run, from which its `Evidence` is made, and made again of resamples."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.evidence import Evidence
from labkit.diagnosis.gather import known_of
from labkit.prediction.prediction import recommend_prefetch, recommend_workers
from labkit.results.run_data import RunData
from labkit.stamps.step_classes import CLASSES, split_steps

# Share of the time spent waiting for data from which it is asked how many workers would be best
WORTH_A_LOOK = limits.WORTH_NAMING["input"] / 2


class StepSums(NamedTuple):
    """What adds up over steps, s."""

    wait: float  # and the other `CLASSES`, in their order
    copy: float
    compute: float
    launch: float
    other: float
    lost: float  # of a CPU's compute: while the model's own thread did not run
    steps: float  # their number

    @property
    def total(self) -> float:
        """The whole time of the steps; drawn ones may have taken none."""
        return sum(self[: len(CLASSES)]) or 1.0


class StepTable:
    """The measured steps of a run: evidence can be drawn from all of them, and from resamples.

    A row of `table` is the `StepSums` of a step or of a few.
    """

    def __init__(self, run: RunData, ranks_cores: float = 0.0):
        """Other ranks of the same job used `ranks_cores`: they are no other programs."""
        first = max(run.warmup - 1, 0)
        parts = split_steps(run.stamps[first:])  # (steps, CLASSES), s
        count = len(parts)
        self.steps = count if parts.any() else 0  # stamps may show no time
        self.seconds = float(parts.sum())
        wait, copy, compute, launch, other = parts.T
        known = known_of(run, wait, ranks_cores)
        own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped, as of a watched loop
        self.is_timed = known.kind == "cpu" and bool(np.isfinite(own).any())
        ran = np.fmin(compute, own) if self.is_timed else compute
        columns = (wait, copy, compute, launch, other)
        table = np.column_stack([*columns, compute - ran, np.ones(count)])
        blocks = np.arange(0, count, max(1, -(-count // limits.MOST_DRAWN)))
        self.rows = len(blocks)
        self.table = np.add.reduceat(table, blocks) if self.rows else table
        self.known = known if run.watched else _advised(known, run, self._sums(slice(None)))
        self.blame = self._blame()

    def _blame(self) -> float:
        """Return the part (0 to 1) of what was taken from the model's thread that workers took."""
        use = self.known.use
        if not self.known.num_workers:
            return 0.0
        if use.others is None or not self.steps:
            return 1.0
        sums = self._sums(slice(None))
        workers = max(0.0, (use.own or 0.0) - (sums.compute - sums.lost) / self.seconds)
        return workers / max(workers + use.others, 1e-9)

    def _sums(self, rows: np.ndarray | slice) -> StepSums:
        return StepSums(*self.table[rows].sum(axis=0).tolist())

    def evidence(self, rows: np.ndarray | slice = slice(None)) -> Evidence:
        """Return the evidence of all steps, or of the given rows (a resampled run)."""
        sums = self._sums(rows)
        total = sums.total
        stolen = sums.lost / total
        by_workers = stolen * self.blame if self.is_timed and self.known.num_workers else None
        return replace(
            self.known,
            source=f"step stamps, {sums.steps:.0f} steps",
            wait_share=sums.wait / total,
            copy_share=sums.copy / total,
            compute_share=sums.compute / total,
            launch_share=sums.launch / total,
            other_share=sums.other / total,
            stolen_by_workers=by_workers,
            stolen_by_others=stolen * (1 - self.blame),
            compute_us=sums.compute / sums.steps * 1e6,
            wait_us=sums.wait / sums.steps * 1e6,
        )


def _advised(known: Evidence, run: RunData, sums: StepSums) -> Evidence:
    """Return a bench's evidence with what simulations recommend, where that may matter."""
    worth = max(sums.wait, sums.lost) / sums.total > WORTH_A_LOOK
    if not worth and (known.card.launches or 0.0) <= limits.WORTH_NAMING["launch"] / 2:
        return known
    deeper = recommend_prefetch(run) if known.num_workers else None
    return replace(known, advised=recommend_workers(run), deeper_queue=deeper)
