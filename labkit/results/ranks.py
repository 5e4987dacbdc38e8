"""The result of a distributed run: one Run for each rank, merged into one object.

Each rank has a log, `rankN/events.jsonl` in the run's folder; the run's own log says how it went.
In a saved record, which is one file, a rank's lines carry its number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.bench.grid import NOISY
from labkit.knobs import Settings, as_typed
from labkit.results.event_log import EventLogResult
from labkit.results.log_reader import Process, fact, live_property, of_one_moment
from labkit.results.run import Run
from labkit.results.run_log import ENDINGS
from labkit.results.watched_pipeline import Watched, pipeline_of
from labkit.spec import Pipeline
from labkit.stamps.events import FILE_NAME
from labkit.stamps.record import Event, Tail
from labkit.text import noise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.diagnosis.rank_times import RankTimes
    from labkit.diagnosis.verdict import Diagnosis

FREE = ("steps", "seconds", "xray", "device")  # knobs in which a run and its ranks may differ


class RankRun(Run):
    """One rank of a distributed run, read as part of the whole.

    Its device counts as busy while it waits for others, as in nvidia-smi: see `Ranks.times`.
    """

    def __init__(self, whole: Ranks, rank: int):
        self.rank = rank
        super().__init__(whole.log_of(rank).parent, recorded=whole.recorded, whole=whole)


class Ranks(EventLogResult):
    """A distributed run: `ranks[1]` is a Run, `len(ranks)` how many have begun."""

    NUMBERS = (
        *EventLogResult.NUMBERS, "failed_rank", "world_size", "no_sync", "steps", "throughput",
        "spread", "noisy",
    )  # fmt: skip

    def __init__(self, path: Path, process: Process | None = None, recorded: bool = False):
        """Read the run at `path`; the arguments are those of an `EventLogResult`."""
        self._ranks: dict[int, RankRun] = {}
        self._tails: dict[int, Tail] = {}
        super().__init__(path, process, recorded)

    # Reading the logs

    def take_in(self, event: Event) -> None:
        """Keep what matters of one event; a rank keeps its own."""
        number = event.get("of_rank")
        if number is None:
            super().take_in(event)
            return
        if number not in self._ranks:
            self._ranks[number] = RankRun(self, number)
        self._ranks[number].take_in(event)

    def _absorb(self, events: Iterable[Event]) -> None:
        super()._absorb(events)
        if self.path.is_dir():
            for number in range(self.world_size):
                tail = self._tails.setdefault(number, Tail(self.log_of(number)))
                for event in tail.read():
                    self.take_in({**event, "of_rank": number})
        if "end" in self._kept:
            for rank in self._ranks.values():
                if not any(map(rank.event, ENDINGS)):
                    rank.take_in(self._end_of(rank))

    def begin_moment(self, alive: bool) -> None:
        """Let readers see what was taken in, of every rank."""
        super().begin_moment(alive)
        for rank in self._ranks.values():
            rank.begin_moment(alive)

    def log_of(self, number: int) -> Path:
        """Return the file of a rank's own log."""
        return self.path / f"rank{number}" / FILE_NAME

    def _end_of(self, rank: RankRun) -> Event:
        """Return how a rank ended that could not say it itself, as its `end` event."""
        end = self._kept["end"]
        if self.failed_rank in (None, rank.rank):
            return end
        return {**end, "why": f"ended because rank {self.failed_rank} failed"}

    def __len__(self) -> int:
        return len(self._now()._ranks)

    def __iter__(self) -> Iterator[RankRun]:
        ranks = self._now()._ranks
        return iter([ranks[number] for number in sorted(ranks)])

    def __getitem__(self, index: int) -> RankRun:
        return list(self)[index]

    # What ran

    @property
    def asked(self) -> Pipeline:
        """The pipeline that was asked for; of a starved rank see its own Run."""
        return pipeline_of(self._fact("spec", "pipeline", {}))

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
    world_size: int = fact("spec", "ranks", 0)

    # Whether gradients are exchanged for updates only
    no_sync: bool = fact("spec", "no_sync", False)

    @property
    def starve(self) -> dict[int, Settings]:
        """{rank: {knob: value}} of the ranks whose loader was set otherwise."""
        starved = self._fact("spec", "starve", {})
        return {int(number): knobs for number, knobs in starved.items() if number.isdecimal()}

    # The rank whose failure ended the run
    failed_rank: int | None = fact("error", "failed_rank")

    # What was measured

    @property
    def steps(self) -> int:
        """Steps that every rank has done, warm-up included."""
        return min((rank.steps for rank in self), default=0)

    @live_property
    def loss(self) -> list[float]:
        """The mean loss over the ranks, per step: that of the joined batch."""
        losses = zip(*(rank.loss for rank in self), strict=False)
        return [float(np.mean(of_step)) for of_step in losses]

    @live_property
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

    @live_property
    def times(self) -> RankTimes | None:
        """Where every rank's time went; None if too short."""
        from labkit.diagnosis.rank_times import rank_times

        return rank_times({run.rank: run for run in self if run.steps})

    @of_one_moment
    def speedup(self, one: Run) -> float | None:
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

    @of_one_moment
    def efficiency(self, one: Run) -> float | None:
        """Return the (weak) scaling efficiency, 0 to 1: the speed-up over `one` per rank."""
        speedup = self.speedup(one)
        return speedup and speedup / len(self)

    @of_one_moment
    def diagnose(self) -> Diagnosis:
        """Name what holds the ranks back, and which of them does."""
        from labkit.diagnosis.rank_verdict import of_ranks

        runs = {run.rank: run for run in self} or {0: RankRun(self, 0)}
        return of_ranks(runs, self.times).verdict

    # As figure, text and JSON

    @of_one_moment
    def plot(self) -> Figure:
        """Draw where each rank's time went."""
        from labkit.view.several_figures import draw_ranks

        return draw_ranks(self)

    @of_one_moment
    def to_dict(self) -> dict[str, object]:
        """Return the run's statistics, and each rank's, as JSON types."""
        times = self.times
        diagnosis = self.diagnose() if self.steps else None
        return {
            **super().to_dict(),
            "starve": self._fact("spec", "starve", {}),
            "loss": [None if math.isnan(loss) else loss for loss in self.loss],
            "times": times and times.to_dict(),
            "diagnosis": diagnosis and diagnosis.to_dict(),
            "pipeline": self.pipeline.to_dict(),
            "ranks": [{"rank": rank.rank, **rank.to_dict()} for rank in self],
        }

    def extra_lines(self) -> list[str]:
        """Return the events of every rank's own log, each with the rank it is of."""
        if not self.path.is_dir():
            return []
        return [
            json.dumps({**event, "of_rank": number}, separators=(",", ":"))
            for number in sorted(self._ranks)
            for event in Tail(self.log_of(number)).read()
        ]

    @property
    @of_one_moment
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

    def _what(self) -> str:
        starve = f"starve={self.starve!r}" if self.starve else ""
        no_sync = "no_sync" if self.no_sync else ""
        knobs = as_typed(self.asked.changed())
        return ", ".join(filter(None, (str(self.world_size), knobs, no_sync, starve)))
