"""What holds several ranks back, and which of them: the slow one is not the one that waits.

A rank that is short of data looks idle, the others busy, in an all-reduce that cannot complete
before the last rank has all its gradients: what they wait up to then is waiting for that rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.diagnosis import device_remedies as cures
from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.diagnosis import Diagnosis, resampled, source_of
from labkit.diagnosis.doubts import gaps_hidden, too_short
from labkit.diagnosis.findings import Finding, Measured
from labkit.diagnosis.remedies import Remedy
from labkit.diagnosis.witnesses import deciding, witnesses
from labkit.diagnosis.wording import worded
from labkit.results.result import Result, Table

if TYPE_CHECKING:
    from labkit.results.ranks import Ranks
    from labkit.results.run import Run

PARTS = {
    "wait": "data",
    "compute": "compute",
    "others": "others",
    "transfer": "exchange",
    "other": "other",
}
STAMPS = "stamps in DDP's communication hook"
ONE_RANK_ALONE = Remedy(
    "one_rank_alone",
    "Look into one rank alone, as a run of one process: lk.run(ranks.alone).diagnose().",
)


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
        wall = seconds["step"].sum(axis=1)
        self.wait = seconds["wait"].sum(axis=1) / wall
        self.compute = seconds["compute"].sum(axis=1) / wall
        self.others = seconds["others"].sum(axis=1) / wall
        self.transfer = seconds["transfer"].sum(axis=1) / wall
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
    runs = [run for run in ranks if run.steps]
    count = min((run.steps for run in runs), default=0)
    first = max((run.warmup for run in runs), default=0)
    if count - first < 2 or first < 1:
        return None
    parts = step_parts(runs, first, count)
    exchange = np.stack([run.exchange_ns[first:count] for run in runs]) / 1e9  # (ranks, steps, 2)
    none = np.any(np.isnan(exchange), axis=(0, 2))  # (steps,): nothing was exchanged
    complete, averaged = np.moveaxis(np.where(none[:, np.newaxis], 0.0, exchange), 2, 0)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    seconds = {
        "step": parts.step,
        "wait": parts.wait,
        "compute": np.clip(parts.end - parts.start - exposed, 0, None),
        "others": others,
        "transfer": exposed - others,
    }
    late = np.where(none, -1, complete.argmax(axis=0))
    return RankTimes(tuple(run.rank for run in runs), seconds, late)


class StepParts(NamedTuple):
    """When the ranks' steps were, each (ranks, steps), s, on the clock that all ranks share."""

    start: np.ndarray  # of the compute
    end: np.ndarray
    step: np.ndarray  # from the end of the step before to that of this one
    wait: np.ndarray  # of it, for data


def step_parts(runs: Sequence[Run], first: int, count: int) -> StepParts:
    """Return the parts of the steps from `first` up to `count`."""
    rows = slice(first - 1, count)
    stamps = np.stack([run.stamps_ns(rows) for run in runs]) / 1e9
    asked, ready, _, _, start, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]  # the end of the step before
    wait = np.clip(np.minimum(ready, start) - np.maximum(asked, before), 0, None)
    return StepParts(start, end, np.maximum(end - before, 1e-9), wait)


def diagnose(ranks: Ranks) -> Diagnosis:
    """Name what holds a distributed run back, and which rank."""
    source = source_of(ranks)
    times = ranks.times
    short = too_short(0 if times is None else len(times))
    if short is not None:
        return Diagnosis((worded(short),), 0.0, source)
    assert times is not None  # or it was too short
    notes = ()
    if ranks.world_size > len(ranks):
        notes = ("Only the ranks of this machine were looked at: those of others log there.",)
    findings = _rank(times, ranks)
    hidden = _hidden(ranks) if findings[0].name == "compute" else None
    if hidden:
        return Diagnosis(tuple(map(_told, (hidden, *findings))), 0.0, source, notes)
    findings, confidence = resampled(
        len(times), lambda rows: _rank(times.take(rows), ranks), findings
    )
    return Diagnosis(tuple(map(_told, findings)), confidence, source, notes)


def _told(finding: Finding) -> Finding:
    """Return a finding in words, its remedies filled in with the rank to blame."""
    filled = (remedy.filled(rank=finding.rank) for remedy in finding.remedies)
    return worded(replace(finding, remedies=tuple(filled)))


def _hidden(ranks: Ranks) -> Finding | None:
    """Return a doubt where a GPU's busy time may be gaps between kernels."""
    for rank in ranks:
        seen = witnesses(rank)
        witness = deciding(seen)
        if rank.machine.kind == "gpu" and not (witness and witness.works):
            return gaps_hidden(rank.utilization or 0.0, seen, ONE_RANK_ALONE)
    return None


def _rank(times: RankTimes, ranks: Ranks) -> tuple[Finding, ...]:
    """Return what costs time, the costliest first."""
    found = (one_is_late(times), _all_wait(times), _exchange(times, ranks))
    limit = limits.WORTH_NAMING
    worth = [finding for finding in found if finding and finding.lost_share >= limit[finding.name]]
    if worth:
        return tuple(sorted(worth, key=lambda finding: -finding.lost_share))
    seen = "of the time the ranks compute; the waits for data, for another rank or for the exchange"
    measured = Measured(f"{seen} are below {limit['input']:.0%} each", float(times.compute.mean()))
    found = "the devices are the limit"
    return (Finding("compute", found, measured=(measured,), remedies=(ONE_RANK_ALONE,)),)


def _all_wait(times: RankTimes) -> Finding:
    """Every rank waits for its data."""
    fed = float(times.wait.min())
    seen = "of the time, at least, every rank waits for data"
    measured = (Measured(seen, fed, by="step stamps"),)
    return Finding("input", "all ranks are short of data", fed, measured, (cures.FEED_ALL,))


def _exchange(times: RankTimes, ranks: Ranks) -> Finding:
    """Ranks wait for gradients that all of them have computed."""
    transfer = float(times.transfer.mean())
    here = " of this machine" if ranks.world_size > len(ranks) else ""
    seen = f"of the time ranks wait for gradients that every rank{here} has computed"
    rarely = ranks.pipeline.accumulation_steps > 1 and not ranks.no_sync
    remedy = cures.NO_SYNC if rarely else cures.EXCHANGE_LESS
    measured = (Measured(seen, transfer, by=f"not overlapped; {STAMPS}"),)
    return Finding("communication", "the exchange is not hidden", transfer, measured, (remedy,))


def one_is_late(
    times: RankTimes, came_last: str = "gradients came", by: str = STAMPS
) -> Finding | None:
    """One rank is last in nearly all steps: by its own wait for data, or otherwise."""
    exchanged = times.late[times.late >= 0]
    if len(times.ranks) < 2 or not len(exchanged):
        return None
    counts = np.bincount(exchanged, minlength=len(times.ranks))
    late = int(counts.argmax())
    if counts[late] < limits.SAME_RANK * len(exchanged):
        return None
    rank = times.ranks[late]
    rest = np.arange(len(times.ranks)) != late
    lost = float(times.others[rest].mean())
    own_wait = float(times.wait[late])
    others_wait = float(times.wait[rest].mean())
    short = own_wait - others_wait >= limits.OWN_WAIT * lost
    last = f"rank {rank}'s {came_last} last in {counts[late]} of {len(exchanged)} steps"
    waited = "of the time the others waited for that, seemingly busy, in the all-reduce"
    return Finding(
        name="input" if short else "straggler",
        cause="one rank is short of data" if short else "one rank is slower",
        lost_share=lost,
        measured=(
            Measured(last, by=by),
            Measured(waited, lost),
            Measured("of the time it waited for data itself", own_wait),
            Measured("of the time the others did", others_wait),
        ),
        remedies=(cures.FEED_RANK if short else cures.SLOW_RANK,),
        rank=rank,
    )
