"""Where the time of each rank went: what it took for its own part, and waited for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labkit.results.result import Result, Table
from labkit.results.run_data import RunData

PARTS = {
    "wait": "data",
    "compute": "compute",
    "others": "others",
    "transfer": "exchange",
    "other": "other",
}


@dataclass(frozen=True, repr=False)
class RankTimes(Result):
    """Where the measured steps of every rank went, as shares (ranks,) of wall time, 0 to 1.

    A rank waits for data (`wait`), for another's gradients (`others`), and for the exchange as far
    as it was not overlapped (`transfer`; `communication` both); `compute` is without these, `other`
    copies and Python between steps.
    """

    ranks: tuple[int, ...]
    seconds: dict[str, np.ndarray]  # the parts but "other", and "step": each (ranks, steps)
    late: np.ndarray  # (steps,): the rank whose gradients came last, by place; -1 without any

    def share(self, part: str) -> np.ndarray:
        """Return the share of a part (ranks,)."""
        return self.seconds[part].sum(axis=1) / self.seconds["step"].sum(axis=1)

    wait = property(lambda self: self.share("wait"))
    compute = property(lambda self: self.share("compute"))
    others = property(lambda self: self.share("others"))
    transfer = property(lambda self: self.share("transfer"))
    communication = property(lambda self: self.others + self.transfer)

    @property
    def other(self) -> np.ndarray:
        """What is in no other part."""
        return np.clip(1 - (self.wait + self.compute + self.communication), 0, 1)

    def __len__(self) -> int:
        return len(self.late)

    def to_dict(self) -> dict[str, object]:
        """Return the shares of each rank as JSON types."""
        shares = {part: np.round(getattr(self, part), 4).tolist() for part in PARTS}
        return {"ranks": list(self.ranks), "steps": len(self), **shares}

    def table(self) -> Table:
        """Return a row for each rank."""
        columns = ([f"{share:.0%}" for share in getattr(self, part)] for part in PARTS)
        rows = list(zip(self.ranks, *columns, strict=True))
        return Table(rows, ("rank", *PARTS.values()), left=())


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
    # with the step before
    stamps = np.stack([run.stamps_ns(slice(start - 1, stop)) for run in runs.values()]) / 1e9
    asked, ready, _, _, begin, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]
    step = np.maximum(end - before, 1e-9)
    wait = np.clip(np.minimum(ready, begin) - np.maximum(asked, before), 0, None)
    exchange = np.stack([run.exchange_ns[start:stop] for run in runs.values()]) / 1e9
    none = np.isnan(exchange).any(axis=(0, 2))  # (steps,): no exchange was stamped
    exchange[:, none] = 0.0
    complete, averaged = np.moveaxis(exchange, 2, 0)  # each (ranks, steps)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    transfer = exposed - others
    late = np.where(none, -1, complete.argmax(axis=0))
    if any(run.watched for run in runs.values()):
        if np.median(np.ptp(end, axis=0)) > np.median(step):
            return None
        others = step - wait
    compute = np.clip(end - begin - others - transfer, 0, None)
    seconds = {"step": step, "wait": wait, "compute": compute}
    return RankTimes(tuple(runs), {**seconds, "others": others, "transfer": transfer}, late)
