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
    pauses: float  # of compute: beyond that of ordinary steps
    timed: float  # of compute: in steps whose own thread was timed
    lost: float  # of `timed`: while that thread did not run
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
        wait, _copy, compute, _launch, _other = parts.T
        own = run.thread_s[first + 1 :]  # (steps,) s; NaN where not stamped
        ran = np.fmin(compute, own)
        # On a CPU only time of the model's own thread counts: to lose the core is no pause of ours
        cycle = run.pipeline.to_dict().get("accumulation_steps") or 1
        pauses = _pauses(ran, cycle, _larger_batches(run.batch_bytes[first + 1 :]))
        timed = np.where(np.isnan(own), 0.0, compute)
        table = np.column_stack([parts, pauses, timed, compute - ran, np.ones(count)])
        known = known_of(run, wait, compute, ranks_cores)
        loop = known.loop
        if loop:
            copied = loop.copied * wait
            table[:, 0] -= copied
            table[:, 1] += copied
        self.known = _advised(known, run, StepSums(*table.sum(axis=0).tolist()))
        blocks = np.arange(0, count, max(1, -(-count // limits.MOST_DRAWN)))
        self.rows = len(blocks)
        self.table = np.add.reduceat(table, blocks) if self.rows else table
        self.blame = self._blame()

    def _blame(self) -> float:
        """Return the part (0 to 1) of what was taken from the model's thread that workers took."""
        use = self.known.use
        if not self.known.num_workers:
            return 0.0
        if use.others is None or not self.steps:
            return 1.0
        sums = self._sums(slice(None))
        ran = sums.compute - self._stolen(sums)
        workers = max(0.0, (use.own or 0.0) - ran / self.seconds)
        return workers / max(workers + use.others, 1e-9)

    def _sums(self, rows: np.ndarray | slice) -> StepSums:
        return StepSums(*self.table[rows].sum(axis=0).tolist())

    def _stolen(self, sums: StepSums) -> float:
        """Return the time (s) of a CPU's compute in which its thread did not run."""
        if self.known.kind != "cpu" or sums.timed <= 0:
            return 0.0
        return sums.lost / sums.timed * sums.compute

    def _slowed_by_workers(self, sums: StepSums) -> float:
        """Return the time (s) that a step whose thread is not timed lost to workers.

        An undisturbed step is what the quickest ones take. Workers that stand in line for a core
        take it from the step, and cost no more time than they run.
        """
        known = self.known
        workers = known.workers
        quick_us = known.quick_compute_us
        if not quick_us or not known.fills_cores:
            return 0.0
        beyond_quick = sums.compute - sums.steps * quick_us / 1e6
        return max(0.0, min(beyond_quick, workers.wanted_cores * sums.compute))

    def evidence(self, rows: np.ndarray | slice = slice(None)) -> Evidence:
        """Return the evidence of all steps, or of the given rows (a resampled run)."""
        sums = self._sums(rows)
        total = sums.total
        stolen = self._stolen(sums) / total
        known = self.known
        by_workers = None
        if known.kind == "cpu" and known.num_workers:
            by_workers = stolen if sums.timed > 0 else self._slowed_by_workers(sums) / total
        return replace(
            known,
            source=f"step stamps, {sums.steps:.0f} steps",
            wait_share=sums.wait / total,
            copy_share=sums.copy / total,
            compute_share=sums.compute / total,
            launch_share=sums.launch / total,
            other_share=sums.other / total,
            pause_share=sums.pauses / total,
            stolen_by_workers=by_workers and by_workers * self.blame,
            stolen_by_others=stolen * (1 - self.blame),
            compute_us=sums.compute / sums.steps * 1e6,
            wait_us=sums.wait / sums.steps * 1e6,
        )


def _advised(known: Evidence, run: RunData, sums: StepSums) -> Evidence:
    """Return a bench's evidence with what simulations recommend, where that may matter.

    Nothing simulates a loop that was only watched.
    """
    if run.watched:
        return known
    worth = WORTH_A_LOOK * sums.total
    waits = sums.wait > worth
    workers = known.num_workers
    crowded = workers and known.kind != "gpu" and sums.lost > worth
    launches = known.card.launches
    if launches:
        crowded = crowded or launches.in_line_share > limits.WORTH_NAMING["launch"] / 2
    may_advise = waits or crowded
    return replace(
        known,
        advised=recommend_workers(run) if may_advise else None,
        deeper_queue=recommend_prefetch(run) if waits and workers else None,
    )


def _larger_batches(batch_bytes: np.ndarray) -> np.ndarray:
    """Return how many times as large as an ordinary one each step's batch is (steps,), at least 1.

    1 where the sizes are not known.
    """
    if not np.isfinite(batch_bytes).any():
        return np.ones(len(batch_bytes))
    times = batch_bytes / max(float(np.nanmedian(batch_bytes)), 1.0)
    return np.maximum(np.nan_to_num(times, nan=1.0), 1.0)


def _pauses(compute: np.ndarray, cycle: int, larger: np.ndarray) -> np.ndarray:
    """Return how much each step's compute exceeds an ordinary one; 0 where by little.

    One step in `cycle` updates the weights, and is a heavier one. A step may grow with the square
    of its batch, which is `larger` than an ordinary one.
    """
    excess = np.zeros(len(compute))
    for place in range(min(cycle, len(compute))):
        some = compute[place::cycle]
        ordinary = np.quantile(some, limits.ORDINARY)
        explained = ordinary * larger[place::cycle] ** 2
        excess[place::cycle] = np.where(some > limits.PAUSE * explained, some - explained, 0.0)
    return excess
