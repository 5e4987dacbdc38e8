"""Where the time of each rank went: what it took for its own part, and waited for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labkit.results.run_data import RunData
from labkit.stamps.step_classes import split_steps


@dataclass(frozen=True)
class RankTimes:
    """Where the measured steps of every rank went, as shares (ranks,) of wall time, 0 to 1.

    A rank waits for data (`wait`), for another's gradients (`others`), and for the exchange as far
    as it was not overlapped (`transfer`); `compute` is without these, `other` copies and Python
    between steps.
    """

    ranks: tuple[int, ...]
    wait: np.ndarray
    compute: np.ndarray
    others: np.ndarray
    transfer: np.ndarray
    other: np.ndarray
    step_s: float  # the mean step
    seconds: dict[str, np.ndarray] = field(repr=False)  # the parts, each (ranks, steps)
    # (steps,): the rank whose gradients came last, by place; -1 without any
    late: np.ndarray = field(repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return the shares of each rank as JSON types."""
        shares = {part: np.round(getattr(self, part), 4).tolist() for part in self.seconds}
        return {"ranks": list(self.ranks), "steps": len(self.late), **shares}


def rank_times(runs: Mapping[int, RunData]) -> RankTimes | None:
    """Return where the time of ranks that train together went; None where they have few steps.

    A bench's exchange has two stamps: a rank's gradients were complete, and all were averaged.
    Nothing stamps that of a watched script, where all but the wait for data may be waiting for the
    others; None where its ranks are not in step.
    """
    stop = min((run.steps for run in runs.values()), default=0)
    start = max((run.warmup for run in runs.values()), default=0)
    if stop - start < 2:
        return None
    parts = np.stack([split_steps(run.stamps[start - 1 : stop]) for run in runs.values()])
    wait, _, compute, _, _ = np.moveaxis(parts, 2, 0)
    step = np.maximum(parts.sum(axis=2), 1e-9)
    exchange = np.stack([run.exchange_ns[start:stop] for run in runs.values()]) / 1e9
    known = np.asarray(np.isfinite(exchange).all(axis=(0, 2)))  # (steps,): the exchange was stamped
    complete, averaged = np.moveaxis(np.where(known[:, np.newaxis], exchange, 0.0), 2, 0)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    if any(run.watched for run in runs.values()):
        ends = np.stack([run.host_ns[start:stop, 3] for run in runs.values()]) / 1e9
        if np.median(np.ptp(ends, axis=0)) > np.median(step):
            return None
        others = step - wait
    seconds = {
        "wait": wait,
        "compute": np.clip(compute - exposed, 0, None),
        "others": others,
        "transfer": np.clip(exposed - others, 0, None),
    }
    seconds["other"] = np.clip(step - sum(seconds.values()), 0, None)
    shares = {part: each.sum(axis=1) / step.sum(axis=1) for part, each in seconds.items()}
    late = np.where(known, complete.argmax(axis=0), -1)
    return RankTimes(tuple(runs), **shares, step_s=step.mean(), seconds=seconds, late=late)
