"""What holds several ranks back, and which of them: the slow one is not the one that waits.

A rank that is short of data looks idle, the others busy, in an all-reduce that cannot complete
before the last rank has all its gradients: what they wait up to then is waiting for that rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.diagnosis import thresholds as limits
from labkit.diagnosis.diagnosis import Diagnosis, gaps_hidden, resampled, source_of, too_short
from labkit.diagnosis.facts import Finding, loss
from labkit.diagnosis.instruments import deciding, witnesses
from labkit.results.result import Result, Table

PARTS = {"wait": "data", "compute": "compute", "others": "others", "transfer": "exchange",
         "other": "other"}  # fmt: skip
ALONE = "Look into one rank alone, as a run of one process: lk.run(ranks.alone).diagnose()."


class RankTimes(Result):
    """Where the measured steps of every rank went, as shares (ranks,) of wall time, 0 to 1.

    A rank waits for data (`wait`), for another's gradients (`others`), and for the exchange as far
    as it was not overlapped (`transfer`; `communication` both); `compute` is without these, `other`
    copies and Python between steps. `seconds` holds the parts and "step", each (ranks, steps);
    `late` (steps,) the place of the rank whose gradients came last, -1 without an exchange.
    """

    def __init__(self, ranks: tuple[int, ...], seconds: dict[str, np.ndarray], late: np.ndarray):
        self.ranks, self.seconds, self.late = ranks, seconds, late
        wall = seconds["step"].sum(axis=1)
        self.wait, self.compute, self.others, self.transfer = (
            seconds[part].sum(axis=1) / wall for part in ("wait", "compute", "others", "transfer")
        )
        self.communication = self.others + self.transfer
        self.other = np.clip(1 - (self.wait + self.compute + self.communication), 0, 1)

    def __len__(self) -> int:
        return len(self.late)

    def take(self, steps: np.ndarray) -> RankTimes:
        """Return the same for the steps with these indices, which may repeat."""
        some = {part: each[:, steps] for part, each in self.seconds.items()}
        return RankTimes(self.ranks, some, self.late[steps])

    def to_dict(self) -> dict[str, Any]:
        """Return the shares of each rank as JSON types."""
        shares = {part: [round(float(x), 4) for x in getattr(self, part)] for part in PARTS}
        return {"ranks": list(self.ranks), "steps": len(self), **shares}

    def table(self) -> Table:
        """Return a row for each rank."""
        columns = ([f"{share:.0%}" for share in getattr(self, part)] for part in PARTS)
        rows = list(zip(self.ranks, *columns, strict=True))
        return Table(rows, ("rank", *PARTS.values()), left=())


def rank_times(ranks: Any) -> RankTimes | None:
    """Return where the ranks' time went, in steps that all have, without warm-up; None if short."""
    runs = [run for run in ranks if run.steps]
    count = min((run.steps for run in runs), default=0)
    first = max((run.warmup for run in runs), default=0)
    if count - first < 2 or first < 1:
        return None
    # (ranks, steps, 6) on the machine's own clock, which all ranks share
    rows = slice(first - 1, count)
    stamps = np.stack([run.stamps_ns(rows).astype(float) for run in runs])
    exchange = np.stack([run.exchange_ns[first:count] for run in runs])  # (ranks, steps, 2)
    asked, ready, _, _, start, end = np.moveaxis(stamps[:, 1:], 2, 0)
    before = stamps[:, :-1, 5]  # the end of the step before
    none = np.isnan(exchange).any(axis=(0, 2))  # (steps,): nothing was exchanged
    complete, averaged = np.where(none[:, None], 0.0, exchange).transpose(2, 0, 1)
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    ns = {
        "step": np.maximum(end - before, 1),
        "wait": np.clip(np.minimum(ready, start) - np.maximum(asked, before), 0, None),
        "compute": np.clip(end - start - exposed, 0, None),
        "others": others,
        "transfer": exposed - others,
    }
    late = np.where(none, -1, complete.argmax(axis=0))
    seconds = {part: each / 1e9 for part, each in ns.items()}
    return RankTimes(tuple(run.rank for run in runs), seconds, late)


def diagnose(ranks: Any) -> Diagnosis:
    """Name what holds a distributed run back, and which rank."""
    source, times, notes = source_of(ranks), ranks.times, ()
    if doubt := too_short(0 if times is None else len(times)):
        return Diagnosis((doubt,), 0.0, source)
    findings = _rank(times, ranks)
    if ranks.world_size > len(ranks):
        notes = ("Only the ranks of this machine were looked at: those of others log there.",)
    if findings[0].name == "compute":  # a GPU's busy time may be gaps between kernels
        for rank in ranks:
            word = deciding(told := witnesses(rank))
            if rank.machine.kind == "gpu" and not (word and word.works):
                doubt = gaps_hidden(rank.utilization or 0.0, told, ALONE)
                return Diagnosis((doubt, *findings), 0.0, source, notes)
    again = resampled(len(times), lambda rows: _rank(times.take(rows), ranks), findings)
    return Diagnosis(*again, source, notes)


def _rank(times: RankTimes, ranks: Any) -> tuple[Finding, ...]:
    """Return what costs time, the costliest first."""
    fed, transfer = float(times.wait.min()), float(times.transfer.mean())
    seen = f"every rank waits for data at least {fed:.0%} of the time"
    change = "Prepare batches in other processes: num_workers."
    starved = loss("input", "all ranks are short of data", fed, seen, "step stamps", change)
    change = "Exchange less often (accumulation_steps with no_sync=True) or use a larger batch."
    if ranks.pipeline.accumulation_steps > 1 and not ranks.no_sync:
        change = "Exchange only before an update (no_sync=True)."
    here = " of this machine" if ranks.world_size > len(ranks) else ""
    cause, seen = "the exchange is not hidden", f"ranks wait {transfer:.0%} of the time for "
    seen += f"gradients that every rank{here} has computed"
    source = "not overlapped; stamps in DDP's communication hook"
    exchange = loss("communication", cause, transfer, seen, source, change)
    found = (_late(times), starved, exchange)
    worth = [f for f in found if f and f.lost_share >= limits.WORTH_NAMING[f.name]]
    if worth:
        return tuple(sorted(worth, key=lambda finding: -finding.lost_share))
    seen = (
        f"the ranks compute for {times.compute.mean():.0%} of the time; the waits for data, for "
        f"another rank or for the exchange are below {limits.WORTH_NAMING['input']:.0%} each."
    )
    return (Finding("compute", "the devices are the limit", seen, ALONE),)


def _late(times: RankTimes) -> Finding | None:
    """One rank is last in nearly all steps: by its own wait for data, or otherwise."""
    exchanged = times.late[times.late >= 0]
    if len(times.ranks) < 2 or not len(exchanged):
        return None
    counts = np.bincount(exchanged, minlength=len(times.ranks))
    who = int(counts.argmax())
    if counts[who] < limits.SAME_RANK * len(exchanged):
        return None
    rank, rest = times.ranks[who], np.arange(len(times.ranks)) != who
    lost, fed = float(times.others[rest].mean()), times.wait[rest].mean()
    seen = (
        f"rank {rank}'s gradients came last in {counts[who]} of {len(exchanged)} steps; the others "
        f"waited for them {lost:.0%} of the time, seemingly busy, in the all-reduce"
    )
    if float(times.wait[who] - fed) >= limits.OWN_WAIT * lost:
        seen += f"; it waited for data {times.wait[who]:.0%} of the time, the others {fed:.0%}"
        change = f"Feed rank {rank}: its disk, its share of the files, its num_workers."
        return loss("input", "one rank is short of data", lost, seen, "stamps", change, rank)
    seen += "; it waited for data no more than they did"
    change = f"Look at what else runs where rank {rank} does, its clock and its batches' sizes."
    return loss("straggler", "one rank is slower", lost, seen, "stamps", change, rank)
