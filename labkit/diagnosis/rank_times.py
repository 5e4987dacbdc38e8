"""Where the time of each rank went: what it took for its own part, and waited for the others."""

from __future__ import annotations

from collections.abc import Mapping

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
# Kinds of work in which the host of a rank may wait for the other ranks
MEETING = ("backward", "sync", "inner_sync", "exchange")
# On a GPU it may do so in any call that a full queue holds up
MEETING_ON_GPU = (*MEETING, "forward", "optimizer", "torch", "copy")


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

    @property
    def own(self) -> np.ndarray:
        """What each rank took for its own part of each step (ranks, steps), s."""
        return self.seconds["step"] - self.seconds["others"] - self.seconds["transfer"]

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
    """Return where the time of a distributed run went; None if it is short.

    The exchange has two stamps: a rank's gradients were complete, and all were averaged.
    """
    runs = {run.rank: run for run in ranks if run.steps}
    steps = _steps_of_all(runs)
    if steps is None:
        return None
    exchange = np.stack([run.exchange_ns[steps] for run in runs.values()]) / 1e9
    none = np.isnan(exchange).any(axis=(0, 2))  # (steps,): nothing was exchanged
    exchange[:, none] = 0.0
    complete, averaged = np.moveaxis(exchange, 2, 0)  # each (ranks, steps)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    late = np.where(none, -1, complete.argmax(axis=0))
    return RankTimes(tuple(runs), _seconds(runs, steps, others, exposed - others), late)


def watched_times(runs: Mapping[int, Run]) -> RankTimes | None:
    """Return where the time of a watched script's ranks went.

    Nothing stamps its exchange: a rank waits for the others where its stacks were sampled in a call
    that may. None where the steps are few, or the ranks not in step.
    """
    steps = _steps_of_all(runs)
    if steps is None or len(runs) == 1:
        return None
    ends = np.stack([run.stamps_ns(steps)[:, 5] for run in runs.values()]) / 1e9
    none = np.zeros((len(runs), ends.shape[1]))
    seconds = _seconds(runs, steps, none, none)
    if np.median(np.ptp(ends, axis=0)) > np.median(seconds["step"]):
        return None
    if all(run.lines.enough("body") for run in runs.values()):
        meeting = [_meeting_s(run)[steps] for run in runs.values()]
        seconds["others"] = np.minimum(meeting, seconds["step"] - seconds["wait"])
    else:  # then of a body all may be waiting
        seconds["others"] = seconds["step"] - seconds["wait"]
    return RankTimes(tuple(runs), seconds, np.full(ends.shape[1], -1))


def _steps_of_all(runs: Mapping[int, Run]) -> slice | None:
    """Return which steps all ranks have, without warm-up; None where they are hardly any."""
    stop = min((run.steps for run in runs.values()), default=0)
    start = max((run.warmup for run in runs.values()), default=0)
    return slice(start, stop) if stop - start > 1 else None


def _seconds(
    runs: Mapping[int, Run], steps: slice, others: np.ndarray, transfer: np.ndarray
) -> dict[str, np.ndarray]:
    """Return `RankTimes.seconds`: to wait for other ranks or the exchange is no compute."""
    more = slice(steps.start - 1, steps.stop)  # with the step before
    stamps = np.stack([run.stamps_ns(more) for run in runs.values()]) / 1e9
    asked, ready, _, _, start, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]  # the end of the step before
    return {
        "step": np.maximum(end - before, 1e-9),
        "wait": np.clip(np.minimum(ready, start) - np.maximum(asked, before), 0, None),
        "compute": np.clip(end - start - others - transfer, 0, None),
        "others": others,
        "transfer": transfer,
    }


def _meeting_s(run: Run) -> np.ndarray:
    """Return the sampled time of each step (steps,) in which the rank may wait for others, s."""
    lines = run.lines
    meets = lines.mask("body") & may_wait(run)
    measured_s = (run.step_ms or 0.0) / 1e3 * (run.steps - run.warmup)
    return np.bincount(lines.step[meets], lines.share[meets] * measured_s, run.steps)


def may_wait(run: Run) -> np.ndarray:
    """Return which of a run's sampled stacks are where a rank may wait for others."""
    return np.isin(run.lines.kind, MEETING_ON_GPU if run.machine.kind == "gpu" else MEETING)
