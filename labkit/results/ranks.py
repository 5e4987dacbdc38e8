"""The result of a distributed run: one Run for each rank, merged into one object.

Each rank has a log, `rankN/events.jsonl` in the run's folder, whose own tells how it went. In a
saved record, one file, a rank's lines carry its number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from labkit.process.events import FILE_NAME
from labkit.results.event_log import EventLogResult, derived, fact, of_one_moment
from labkit.results.record import Tail, pipeline_of
from labkit.results.result import noise
from labkit.results.run import Run
from labkit.spec import NOISY, Pipeline
from labkit.wiring import above

FREE = ("steps", "seconds", "xray", "device")  # knobs in which a run and its ranks may differ
NUMBERS = (
    "id", "utc", "recorded", "outcome", "error", "failed_rank", "world_size", "no_sync", "steps",
    "throughput", "mfu", "spread", "noisy", "communication_share",
)  # fmt: skip


class RankRun(Run):
    """One rank of a distributed run, read as part of the whole.

    Its device counts as busy while it waits for others, as in nvidia-smi: see `Ranks.times`.
    """

    def __init__(self, whole: Ranks, number: int):
        path = whole.path / f"rank{number}"
        super().__init__(path, whole._process, whole.recorded, tail=whole)
        self._whole, self._holds = whole, whole._holds  # every rank is seen at the same moment

    _alive = property(lambda rank: rank._whole._alive)

    def refresh(self) -> RankRun:
        """Read what has been written, by every rank."""
        self._whole.refresh()
        return self

    # fmt: off
    rank = derived(lambda run: run._fact("spec", "place", {}).get("rank", 0),
                   "Its number among all ranks of the run, on every machine.")
    world_size = derived(lambda run: run._fact("spec", "place", {}).get("world_size", 1),
                         "Number of ranks of the run, on all machines together.")
    # fmt: on


class Ranks(EventLogResult):
    """A distributed run: `ranks[1]` is a Run, `len(ranks)` how many have begun on this machine."""

    def __init__(self, path: Path, process: Any = None, recorded: bool = False):
        """Read the run at `path`; the arguments are those of an `EventLogResult`."""
        self._ranks: dict[int, RankRun] = {}  # by their number on this machine
        self._tails: dict[int, Tail] = {}
        super().__init__(path, process, recorded)

    def _take(self, event: dict[str, Any]) -> None:
        number = event.get("of_rank")
        if number is None:
            super()._take(event)
            return
        if number not in self._ranks:
            self._ranks[number] = RankRun(self, number)
        self._ranks[number]._take(event)

    def _absorb(self, events: Iterable[dict[str, Any]]) -> None:
        super()._absorb(events)
        asked = self._fact("spec", "ranks", 0)
        for number in range(asked) if self.path.is_dir() else ():
            log = self.path / f"rank{number}" / FILE_NAME
            for event in self._tails.setdefault(number, Tail(log)).read():
                self._take({**event, "of_rank": number})
        if "end" in self._kept:
            for rank in self._ranks.values():
                if not {"done", "error", "end"} & set(rank._kept):
                    rank._take(self._end_of(rank))

    def _end_of(self, rank: RankRun) -> dict[str, Any]:
        """Say how a rank ended that could not say it itself."""
        codes, failed = self._fact("ranks_ended", "codes", {}), self.failed_rank
        end = {**self._kept["end"], "code": codes.get(str(rank.rank))}
        if failed is not None and failed != rank.rank:
            end["why"] = f"ended by torchrun, because rank {failed} failed"
        elif end["code"] is None and not end.get("why"):
            end["why"] = "the run ended before this rank did"
        return end

    def __len__(self) -> int:
        return len(self._now()._ranks)

    def __iter__(self) -> Iterator[RankRun]:
        return iter([rank for _, rank in sorted(self._now()._ranks.items())])

    def __getitem__(self, index: int) -> RankRun:
        return list(self)[index]

    # fmt: off
    asked = derived(lambda ranks: pipeline_of(ranks._fact("spec", "pipeline", {})),
                    "The pipeline that was asked for; of a starved rank see its own Run.")
    pipeline = derived(lambda ranks: ranks[0].pipeline if len(ranks) else ranks.asked,
                       "The pipeline that rank 0 ran, with every automatic value filled in.")
    not_applied = derived(lambda ranks: ranks[0].not_applied if len(ranks) else {},
                          "{knob: why not}; of `device`, why the ranks did not use the GPU.")
    world_size = derived(lambda log: max([r.world_size for r in log]
                                         or [log._fact("spec", "ranks", 0)]),
                         "Number of ranks that train together, on all machines.")
    no_sync = fact("spec", "no_sync", "Whether gradients are exchanged for updates only.", False)
    starve = derived(lambda log: {int(n): k for n, k in log._fact("spec", "starve", {}).items()},
                     "{rank: {knob: value}} of the ranks whose loader was set otherwise.")
    failed_rank = fact("error", "failed_rank", "The rank whose failure ended the run, or None.")
    steps = derived(lambda ranks: min((rank.steps for rank in ranks), default=0),
                    "Steps that every rank has done, warm-up included.")
    loss = derived(lambda ranks: [float(np.mean(each)) for each in
                                  zip(*(rank.loss for rank in ranks), strict=False)],
                   "The mean loss over the ranks, per step: that of the joined batch.")
    spread = derived(lambda log: max((r.spread for r in log if r.spread is not None), default=None),
                     "Spread (IQR over median) of the least even rank's throughput.")
    mfu = derived(lambda ranks: float(np.mean(shares)) if (shares := [rank.mfu for rank in ranks])
                  and None not in shares else None,
                  "The mean of the ranks' MFUs, each against a device's peak; None if unknown.")
    noisy = derived(lambda ranks: (ranks.spread or 0.0) > NOISY,
                    "True where `spread` is so large that small differences mean nothing.")
    times = derived(lambda ranks: above("Ranks.times")(ranks),
                    "Where every rank's time went (a RankTimes); None if too short.")
    communication_share = derived(lambda ranks: (found := ranks.times) and
                                  float(np.mean(found.communication)),
                                  "Mean share of time from a rank's last gradient to all being "
                                  "averaged: the transfer, and the wait for slower ranks.")
    # fmt: on

    @property
    def alone(self) -> Pipeline:
        """The same pipeline for one process, on rank 0's device: `lk.run(ranks.alone)`."""
        return self.asked.but(device=self.pipeline.device)

    @derived
    def throughput(self) -> float | None:
        """Samples per second of this machine's ranks together, warm-up excluded."""
        rates = [rank.throughput for rank in self]
        return sum(rates) if rates and all(rates) else None

    def speedup(self, one: Run) -> float | None:
        """Return samples/s over those of `one`, the same pipeline in one process.

        ValueError where it was another pipeline, or ran on other hardware.
        """
        ours, theirs = self.asked.to_dict(), one.asked.to_dict()
        differs = [n for n in ours if ours[n] != theirs.get(n) and n not in FREE]
        if differs:
            raise ValueError(f"not the same pipeline: {', '.join(differs)} differ.")
        if (one.machine.kind, one.machine.name) != (self.machine.kind, self.machine.name):
            why = self.not_applied.get("device")
            raise ValueError(
                f"not the same hardware: one process on {one.machine.name}, {len(self)} ranks on "
                f"{self.machine.name}{f' ({why})' if why else ''}. Run the one process where the "
                "ranks were: lk.run(ranks.alone)."
            )
        return self.throughput / one.throughput if self.throughput and one.throughput else None

    def efficiency(self, one: Run) -> float | None:
        """Return the (weak) scaling efficiency, 0 to 1: the speed-up over `one` per rank."""
        speedup = self.speedup(one)
        return None if speedup is None else speedup / len(self)

    @of_one_moment
    def diagnose(self) -> Any:
        """Name what holds the ranks back, and which of them does (a Diagnosis)."""
        return above("Ranks.diagnose")(self)

    @of_one_moment
    def to_dict(self) -> dict[str, Any]:
        """Return the run's statistics, and each rank's, as JSON types."""
        times, diagnosis = self.times, self.diagnose() if self.steps else None
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "starve": {str(rank): knobs for rank, knobs in self.starve.items()},
            "loss": [None if np.isnan(loss) else loss for loss in self.loss],
            "times": times and times.to_dict(),
            "diagnosis": diagnosis and diagnosis.to_dict(),
            "machine": self.machine.to_dict(),
            "pipeline": self.pipeline.to_dict(),
            "ranks": [{"rank": rank.rank, **rank.to_dict()} for rank in self],
        }

    def _extra_lines(self) -> list[str]:
        return [
            json.dumps({**event, "of_rank": number}, separators=(",", ":"))
            for number in (sorted(self._ranks) if self.path.is_dir() else ())
            for event in Tail(self.path / f"rank{number}" / FILE_NAME).read()
        ]

    @derived
    def numbers(self) -> str:
        """The measured numbers in one line."""
        times = self.times
        if self.throughput is None or times is None:
            return f"{self.steps} steps: too few to measure"
        text = (
            f"{self.throughput:.0f} samples/s together, waiting for data "
            f"{np.mean(times.wait):.0%}, for each other {np.mean(times.others):.0%}, "
            f"exchanging gradients {np.mean(times.transfer):.0%}"
        )
        return text + (f"; {noise(self.spread)}" if self.noisy else "")

    def _what(self) -> str:
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.asked.changed().items())
        settings = [
            self._fact("spec", "ranks", 0), knobs, self.no_sync and "no_sync",
            self.starve and f"starve={self.starve!r}",
        ]  # fmt: skip
        return ", ".join(str(each) for each in settings if each)
