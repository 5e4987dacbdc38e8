"""The result of a distributed run: what each rank's log says, merged into one object.

Each rank has a log, `rankN/events.jsonl` in the run's folder; the run's own log says how it went.
In a saved record, which is one file, a rank's lines carry its number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from labkit.bench.grid import NOISY
from labkit.knobs import Settings, as_typed
from labkit.results.log_data import ENDINGS, LogData, fact
from labkit.results.rank_times import RankTimes, rank_times
from labkit.results.run_data import RunData
from labkit.results.watched_pipeline import Watched, pipeline_of
from labkit.spec import Pipeline
from labkit.stamps.record import Event
from labkit.text import noise

FREE = ("steps", "seconds", "xray", "device")  # knobs in which a run and its ranks may differ


class RanksData(LogData):
    """A distributed run at one moment: `ranks[1]` is a rank's own, `len(ranks)` how many began."""

    NUMBERS = (
        *LogData.NUMBERS, "failed_rank", "world_size", "no_sync", "steps", "throughput",
        "spread", "noisy",
    )  # fmt: skip

    def __init__(self, path: Path, *, recorded: bool = False):
        """Take the log in a run's folder, and those of its ranks below; or a saved record."""
        super().__init__(path, recorded=recorded)
        self._ranks: dict[int, RunData] = {}

    def _rank(self, number: int) -> RunData:
        rank = RunData(self.path / f"rank{number}", recorded=self.recorded)
        return self._ranks.setdefault(number, rank)

    def follow(self) -> bool:
        """Take in what has been written since, by the ranks too."""
        own = super().follow()
        return any([own, *(self._rank(number).follow() for number in range(self.world_size))])

    def take_in(self, event: Event) -> None:
        """Take in one more event, of the whole or of a rank."""
        number = event.get("of_rank")
        if number is None:
            super().take_in(event)
        else:
            self._rank(number).take_in(event)

    @cached_property
    def runs(self) -> dict[int, RunData]:
        """What every rank's own log says, by its number; of one that could not, how it ended."""
        end = self.event("end")
        begun = {
            number: rank.as_of_now(self.alive)
            for number, rank in sorted(self._ranks.items())
            if rank.event("spec")
        }
        for number, run in begun.items():
            if end is not None and not any(map(run.event, ENDINGS)):
                by_other = f"ended because rank {self.failed_rank} failed"
                is_own = self.failed_rank in (None, number)
                run.take_in(end if is_own else {**end, "why": by_other})
        return begun

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[RunData]:
        return iter(self.runs.values())

    def __getitem__(self, index: int) -> RunData:
        return list(self)[index]

    # What ran

    @property
    def asked(self) -> Pipeline:
        """The pipeline that was asked for; of a starved rank see its own Run."""
        return pipeline_of(self.fact_of("spec", "pipeline", default={}))

    @property
    def pipeline(self) -> Pipeline | Watched:
        """The pipeline that rank 0 ran, with every automatic value filled in."""
        return self[0].pipeline if len(self) else self.asked

    @property
    def alone(self) -> Pipeline:
        """The same pipeline for one process, on rank 0's device: `lk.run(ranks.alone)`."""
        return self.asked.but(device=self.pipeline.device)

    @property
    def not_applied(self) -> dict[str, str]:
        """{knob: why not}; of `device`, why the ranks did not use the GPU."""
        return self[0].not_applied if len(self) else {}

    # Number of ranks that were asked for
    world_size: int = fact("spec", "ranks", default=0)

    # Whether gradients are exchanged for updates only
    no_sync: bool = fact("spec", "no_sync", default=False)

    @property
    def starve(self) -> dict[int, Settings]:
        """{rank: {knob: value}} of the ranks whose loader was set otherwise."""
        starved = self.fact_of("spec", "starve", default={})
        return {int(number): knobs for number, knobs in starved.items() if number.isdecimal()}

    # The rank whose failure ended the run
    failed_rank: int | None = fact("error", "failed_rank")

    # What was measured

    @property
    def steps(self) -> int:
        """Steps that every rank has done, warm-up included."""
        return min((rank.steps for rank in self), default=0)

    @cached_property
    def loss(self) -> list[float]:
        """The mean loss over the ranks, per step: that of the joined batch."""
        losses = zip(*(rank.loss for rank in self), strict=False)
        return [float(np.mean(of_step)) for of_step in losses]

    @cached_property
    def throughput(self) -> float | None:
        """Samples per second of all ranks together, warm-up excluded."""
        rates = [rank.throughput for rank in self]
        return sum(filter(None, rates)) if rates and None not in rates else None

    @property
    def spread(self) -> float | None:
        """Spread (IQR over median) of the throughput of rank 0, with which the others keep step."""
        return self[0].spread if len(self) else None

    @property
    def noisy(self) -> bool:
        """True where `spread` is so large that small differences mean nothing."""
        return (self.spread or 0.0) > NOISY

    @cached_property
    def times(self) -> RankTimes | None:
        """Where every rank's time went; None if too short."""
        return rank_times({number: run for number, run in self.runs.items() if run.steps})

    def speedup(self, one: RunData) -> float | None:
        """Return samples/s over those of `one`, the same pipeline in one process.

        ValueError where it was another pipeline, or ran on other hardware.
        """
        ours = self.asked.to_dict()
        theirs = one.asked.to_dict()
        differ = [name for name in ours if ours[name] != theirs.get(name) and name not in FREE]
        if differ:
            raise ValueError(f"not the same pipeline: {', '.join(differ)} differ.")
        if (one.machine.kind, one.machine.name) != (self.machine.kind, self.machine.name):
            raise ValueError(
                f"not the same hardware: one process on {one.machine.name}, {len(self)} ranks on "
                f"{self.machine.name}. Run the one process where the ranks were: "
                "lk.run(ranks.alone); ranks.not_applied says why they did not use a GPU."
            )
        return self.throughput / one.throughput if self.throughput and one.throughput else None

    def efficiency(self, one: RunData) -> float | None:
        """Return the (weak) scaling efficiency, 0 to 1: the speed-up over `one` per rank."""
        speedup = self.speedup(one)
        return speedup and speedup / len(self)

    # As text and as JSON

    def to_dict(self) -> dict[str, object]:
        """Return the run's statistics, and each rank's, as JSON types."""
        return {
            **super().to_dict(),
            "starve": self.fact_of("spec", "starve", default={}),
            "loss": [None if math.isnan(loss) else loss for loss in self.loss],
            "times": self.times and self.times.to_dict(),
            "pipeline": self.pipeline.to_dict(),
            "ranks": [{"rank": number, **run.to_dict()} for number, run in self.runs.items()],
        }

    @property
    def numbers(self) -> str:
        """The measured numbers in one line."""
        times = self.times
        if self.throughput is None or times is None:
            return f"{self.steps} steps: too few to measure"
        text = (
            f"{self.throughput:.0f} samples/s together, "
            f"waiting for data {np.mean(times.wait):.0%}, "
            f"for each other {np.mean(times.others):.0%}, "
            f"exchanging gradients {np.mean(times.transfer):.0%}"
        )
        return f"{text}; {noise(self.spread)}" if self.spread and self.noisy else text

    @property
    def what(self) -> str:
        """The number of ranks, and what was set."""
        starve = f"starve={self.starve!r}" if self.starve else ""
        no_sync = "no_sync" if self.no_sync else ""
        knobs = as_typed(self.asked.changed())
        return ", ".join(filter(None, (str(self.world_size), knobs, no_sync, starve)))


def delays_of(runs: Iterable[RunData | RanksData]) -> str:
    """Return the simulated delays behind the runs' numbers; "" if there are none."""
    measured = [run for run in runs if run.throughput is not None]
    found = dict.fromkeys(run.pipeline.simulated_delay or "none" for run in measured)
    return "" if found.keys() <= {"none"} else f"simulated delay: {' / '.join(found)}"
