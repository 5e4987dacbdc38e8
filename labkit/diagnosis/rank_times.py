"""Where the time of each rank went, by stamps around the exchange of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from labkit.results.ranks import Ranks
from labkit.results.result import Result, Table
from labkit.results.run import Run

PARTS = {
    "wait": "data",
    "compute": "compute",
    "others": "others",
    "transfer": "exchange",
    "other": "other",
}


class RankTimes(Result):
    """Where the measured steps of every rank went, as shares (ranks,) of wall time, 0 to 1.

    A rank waits for data (`wait`), for another's gradients (`others`), and for the exchange as far
    as it was not overlapped (`transfer`; `communication` both); `compute` is without these, `other`
    copies and Python between steps. `seconds` holds the parts and "step", each (ranks, steps);
    `late` (steps,) the place of the rank whose gradients came last, -1 without an exchange.
    """

    def __init__(self, ranks: tuple[int, ...], seconds: dict[str, np.ndarray], late: np.ndarray):
        self.ranks = ranks
        self.seconds = seconds
        self.late = late
        total = {part: each.sum(axis=1) for part, each in seconds.items()}
        self.wait = total["wait"] / total["step"]
        self.compute = total["compute"] / total["step"]
        self.others = total["others"] / total["step"]
        self.transfer = total["transfer"] / total["step"]
        self.communication = self.others + self.transfer
        self.other = np.clip(1 - (self.wait + self.compute + self.communication), 0, 1)

    def __len__(self) -> int:
        return len(self.late)

    def take(self, steps: np.ndarray) -> RankTimes:
        """Return the same for the steps with these indices, which may repeat."""
        some = {part: each[:, steps] for part, each in self.seconds.items()}
        return RankTimes(self.ranks, some, self.late[steps])

    def to_dict(self) -> dict[str, object]:
        """Return the shares of each rank as JSON types."""
        shares = {part: np.round(getattr(self, part), 4).tolist() for part in PARTS}
        return {"ranks": list(self.ranks), "steps": len(self), **shares}

    def table(self) -> Table:
        """Return a row for each rank."""
        columns = ([f"{share:.0%}" for share in getattr(self, part)] for part in PARTS)
        rows = list(zip(self.ranks, *columns, strict=True))
        return Table(rows, ("rank", *PARTS.values()), left=())


def rank_times(ranks: Ranks) -> RankTimes | None:
    """Return where the ranks' time went, in steps that all have, without warm-up; None if short."""
    runs = {run.rank: run for run in ranks if run.steps}
    parts = step_parts(runs, 2)
    if parts is None:
        return None
    exchange = np.stack([run.exchange_ns[parts.rows] for run in runs.values()]) / 1e9
    none = np.isnan(exchange).any(axis=(0, 2))  # (steps,): nothing was exchanged
    exchange[:, none] = 0.0
    complete, averaged = np.moveaxis(exchange, 2, 0)  # each (ranks, steps)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    late = np.where(none, -1, complete.argmax(axis=0))
    return RankTimes(tuple(runs), parts.seconds(others, exposed - others), late)


class StepParts(NamedTuple):
    """When the ranks' steps were, each (ranks, steps), s, on the clock that all ranks share."""

    rows: slice  # which steps these are
    start: np.ndarray  # of the compute
    end: np.ndarray
    step: np.ndarray  # from the end of the step before to that of this one
    wait: np.ndarray  # of it, for data

    def seconds(self, others: np.ndarray, transfer: np.ndarray) -> dict[str, np.ndarray]:
        """Return `RankTimes.seconds`: to wait for other ranks or the exchange is no compute."""
        compute = np.clip(self.end - self.start - others - transfer, 0, None)
        return {
            "step": self.step,
            "wait": self.wait,
            "compute": compute,
            "others": others,
            "transfer": transfer,
        }


def step_parts(runs: Mapping[int, Run], least: int) -> StepParts | None:
    """Return the parts of the steps that all have, without warm-up; None of fewer than `least`."""
    count = min((run.steps for run in runs.values()), default=0)
    first = max((run.warmup for run in runs.values()), default=0)
    if count - first < least:
        return None
    stamps = np.stack([run.stamps_ns(slice(first - 1, count)) for run in runs.values()]) / 1e9
    asked, ready, _, _, start, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]  # the end of the step before
    wait = np.clip(np.minimum(ready, start) - np.maximum(asked, before), 0, None)
    return StepParts(slice(first, count), start, end, np.maximum(end - before, 1e-9), wait)
