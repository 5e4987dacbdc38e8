"""What holds several ranks back, and which of them: the slow one is not the one that waits.

All ranks leave a step together. A rank that is short of data looks idle in its loader; all the
others look busy, in an all-reduce that is waiting for it. So the ranks are compared with each
other, step by step, and the one is named whose gradients come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis import thresholds as limits
from labkit.analysis.diagnosis import Diagnosis
from labkit.analysis.finding import WORDS, Finding, gain
from labkit.analysis.rank_times import RankTimes
from labkit.analysis.withheld import upper_bound
from labkit.analysis.witnesses import deciding, witnesses

# A loss below this share of wall time is not named; as for input in thresholds.py. Healthy ranks
# wait for each other as well: two gloo ranks on two cores 7 to 9 % of the time, beside other
# programs 22 %. They take turns in that, which is what SAME_RANK asks. Not calibrated further.
WORTH_NAMING = 0.13
# The late rank must be the same one in this share of the steps: by chance it is in half of them.
SAME_RANK = 0.75
ALONE = "Look into one rank alone, as a run of one process: lk.run(ranks.alone).diagnose()."
OWN_WAIT = 0.5  # of what the others wait for it, a late rank's extra wait for data explains it

RANK_WORDS = WORDS | {
    "communication": "exchanging gradients",
    "straggler": "one rank is slower than the others",
}


@dataclass(frozen=True, repr=False)
class RanksDiagnosis(Diagnosis):
    """A Diagnosis of several ranks; `rank` is the one that holds the others back, or None.

    `bottleneck` is one of "input", "straggler" (a rank that is late for another reason than its
    data), "communication", "compute" and "unsure".
    """

    rank: int | None = None

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"{self.bottleneck}{where} ({RANK_WORDS[self.bottleneck]})"

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON types."""
        return super().to_dict() | {"rank": self.rank}


def diagnose(ranks: Any) -> RanksDiagnosis:
    """Name what holds a distributed run back, and which rank."""
    word = "RECORDED" if ranks.recorded else "measured"
    source, times = f"{word} on {ranks.machine.name}", ranks.times
    if times is None or times.step_s.shape[1] < limits.MIN_STEPS:
        steps = 0 if times is None else times.step_s.shape[1]
        doubt = Finding(
            "unsure", "too short",
            f"only {steps} steps behind the warm-up, {limits.MIN_STEPS} are needed.",
            "Run more steps.", 0.0,
        )  # fmt: skip
        return RanksDiagnosis("unsure", (doubt,), 0.0, source)
    findings, rank = _rank(times, ranks)
    verdict = (findings[0].name, rank)
    confidence = _confidence(times, ranks, verdict)
    notes = ()
    if ranks.world_size > len(ranks):
        notes = ("Only the ranks of this machine were looked at: those of others log there.",)
    if findings[0].name == "compute" and (doubt := _gaps_may_hide(ranks)):
        return RanksDiagnosis("unsure", (doubt, *findings), 0.0, source, notes)
    if confidence < limits.MIN_CONFIDENCE:
        doubt = Finding(
            "unsure", "too close to call",
            f"resampling the steps gives the same verdict in {confidence:.0%} of the cases only.",
            "Run longer (more steps), on a quiet machine.", 0.0,
        )  # fmt: skip
        return RanksDiagnosis("unsure", (doubt, *findings), confidence, source, notes)
    return RanksDiagnosis(verdict[0], findings, confidence, source, notes, rank)


def _rank(times: RankTimes, ranks: Any) -> tuple[tuple[Finding, ...], int | None]:
    """Return what costs time, the costliest first, and the rank to blame for the first."""
    found = [_late(times), _starved(times), _exchange(times, ranks)]
    worth = [(f, rank) for f, rank in found if f is not None and f.lost_share >= WORTH_NAMING]
    worth.sort(key=lambda pair: -pair[0].lost_share)
    if not worth:
        return (_healthy(times),), None
    return tuple(finding for finding, _ in worth), worth[0][1]


def _late(times: RankTimes) -> tuple[Finding | None, int | None]:
    """One rank is last in nearly all steps: by its own wait for data, or otherwise."""
    exchanged = times.late[times.late >= 0]
    if len(times.ranks) < 2 or not len(exchanged):
        return None, None
    counts = np.bincount(exchanged, minlength=len(times.ranks))
    who = int(counts.argmax())
    if counts[who] < SAME_RANK * len(exchanged):
        return None, None
    rank, rest = times.ranks[who], np.arange(len(times.ranks)) != who
    lost = float(times.others[rest].mean())
    extra = float(times.wait[who] - times.wait[rest].mean())
    evidence = (
        f"rank {rank}'s gradients came last in {counts[who]} of {len(exchanged)} steps; the others "
        f"waited for them {lost:.0%} of the time, busy to look at, in the all-reduce "
    )
    if extra >= OWN_WAIT * lost:
        return Finding(
            "input", "one rank is short of data",
            evidence + f"(rank {rank} waited for data {times.wait[who]:.0%} of the time, the "
            f"others {times.wait[rest].mean():.0%}; stamps of both, threshold {WORTH_NAMING:.0%}).",
            f"Feed rank {rank}: its disk, its share of the files, its num_workers. Expect "
            f"{gain(lost)} throughput of all ranks; notebook 03 DataLoader tuning.",
            lost,
        ), rank  # fmt: skip
    return Finding(
        "straggler", "one rank is slower",
        evidence + f"(it waited for data no more than they did; threshold {WORTH_NAMING:.0%}).",
        f"Look at what else runs where rank {rank} does, at its clock and its batches' sizes. "
        f"Expect {gain(lost)} throughput of all ranks.",
        lost,
    ), rank  # fmt: skip


def _starved(times: RankTimes) -> tuple[Finding | None, None]:
    """All ranks wait for data: what the best fed of them waits, all do."""
    lost = float(times.wait.min())
    evidence = f"every rank waits for data at least {lost:.0%} of the time (step stamps)."
    advice = f"Prepare batches in other processes: num_workers. Expect {gain(lost)} throughput; "
    return Finding(
        "input", "all ranks are short of data", evidence, f"{advice}notebook 03 DataLoader tuning.",
        lost,
    ), None  # fmt: skip


def _exchange(times: RankTimes, ranks: Any) -> tuple[Finding | None, None]:
    """The exchange itself, from when every rank had its gradients."""
    lost = float(times.transfer.mean())
    if ranks.pipeline.accumulation_steps > 1 and not ranks.no_sync:
        change = "Exchange only before an update (no_sync=True)."
    else:
        change = "Exchange less often (accumulation_steps with no_sync=True) or use a larger batch."
    here = " of this machine" if ranks.world_size > len(ranks) else ""
    evidence = (
        f"ranks wait {lost:.0%} of the time for gradients that every rank{here} has computed "
        f"(not overlapped; stamps in DDP's communication hook, threshold {WORTH_NAMING:.0%})."
    )
    advice = f"{change} Expect {gain(lost)} throughput; notebook 09 Beyond one GPU."
    return Finding("communication", "the exchange is not hidden", evidence, advice, lost), None


def _healthy(times: RankTimes) -> Finding:
    return Finding(
        "compute", "the devices are the limit",
        f"the ranks compute for {times.compute.mean():.0%} of the time; the waits for data, for "
        f"another rank or for the exchange are below {WORTH_NAMING:.0%} each.",
        ALONE, 0.0,
    )  # fmt: skip


def _gaps_may_hide(ranks: Any) -> Finding | None:
    """Return the doubt about GPUs whose busy time may be gaps between kernels, if there is one."""
    seen = [(rank, witnesses(rank)) for rank in ranks if rank.machine.kind == "gpu"]
    judged = [(rank, told, deciding(told)) for rank, told in seen]
    doubtful = [(rank, told) for rank, told, word in judged if word is None or not word.works]
    if not doubtful:
        return None
    rank, told = doubtful[0]
    return upper_bound(rank.utilization or 0.0, told, ALONE)


def _confidence(times: RankTimes, ranks: Any, verdict: tuple) -> float:
    """Return the share of resampled runs with the same verdict and the same rank."""
    rng, steps = np.random.default_rng(0), times.step_s.shape[1]
    rows = rng.integers(0, steps, (limits.RESAMPLES, steps))
    same = 0
    for row in rows:
        findings, rank = _rank(times.take(row), ranks)
        same += (findings[0].name, rank) == verdict
    return same / len(rows)
