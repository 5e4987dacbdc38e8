"""The result of a distributed run: what each rank's log says, and where its time went.

Each rank has a log, `rankN/events.jsonl` in the run's folder; the run's own log says how it went.
In a saved record, which is one file, a rank's lines carry its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.knobs import Settings, as_typed
from labkit.results.log_data import ENDINGS, LogData, fact
from labkit.results.run_data import RunData, pipeline_of
from labkit.spec import Pipeline
from labkit.stamps.record import Event
from labkit.stamps.step_classes import split_steps
from labkit.stamps.steps import DONE, MOMENTS

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self

FREE = ("steps", "seconds", "xray", "device")  # knobs in which a run and its ranks may differ
RANK_PARTS = ("wait", "compute", "others", "transfer", "other")  # of a rank's time


class RanksData(LogData):
    """A distributed run at one moment: `runs[1]` is a rank's own, `len(runs)` how many began."""

    def __init__(self, path: Path, *, recorded: bool = False):
        """Take the log in a run's folder, and those of its ranks below; or a saved record."""
        super().__init__(path, recorded=recorded)
        self._ranks: dict[int, RunData] = {}

    def _rank(self, number: int) -> RunData:
        if number not in self._ranks:
            folder = self.path / f"rank{number}"
            self._ranks[number] = RunData(folder, recorded=self.recorded)
        return self._ranks[number]

    def follow(self) -> bool:
        """Take in what has been written since, by the ranks too."""
        own = super().follow()
        begun = [rank for rank in range(self.world_size) if (self.path / f"rank{rank}").is_dir()]
        return any([own, *(self._rank(rank).follow() for rank in begun)])

    def take_in(self, event: Event) -> None:
        """Take in one more event, of the whole or of a rank."""
        number = event.get("of_rank")
        if number is None:
            super().take_in(event)
        else:
            self._rank(number).take_in(event)

    def as_of_now(self, alive: bool) -> Self:
        """Return what has been read by now, of each rank that has begun too.

        A rank that could not say how it ended did as all.
        """
        now = super().as_of_now(alive)
        begun = {number: rank for number, rank in self._ranks.items() if rank.event("spec")}
        now._ranks = {number: begun[number].as_of_now(alive) for number in sorted(begun)}
        end = now.event("end")
        for rank in now._ranks.values():
            if end is not None and not any(map(rank.event, ENDINGS)):
                rank.take_in(end)
        return now

    @property
    def runs(self) -> dict[int, RunData]:
        """What each rank's own log says, by its number."""
        return self._ranks

    @property
    def first(self) -> RunData | None:
        """Rank 0, with which the others keep step; None before it began."""
        return next(iter(self.runs.values()), None)

    # What ran

    @property
    def asked(self) -> Pipeline:
        """The pipeline that was asked for; of a starved rank see its own Run."""
        return pipeline_of(self.fact_of("spec", "pipeline", default={}))

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that rank 0 ran, with every automatic value filled in."""
        return self.first.pipeline if self.first else self.asked

    @property
    def alone(self) -> Pipeline:
        """The same pipeline for one process, on rank 0's device: `lk.run(ranks.alone)`."""
        return self.asked.but(device=self.pipeline.device)

    # Number of ranks that were asked for
    world_size: int = fact("spec", "ranks", default=0)

    # {rank: {knob: value}} of the ranks whose loader was set otherwise
    starve: dict[str, Settings] = fact("spec", "starve", default={})

    # What was measured

    @property
    def steps(self) -> int:
        """Steps that every rank has done, warm-up included."""
        return min((run.steps for run in self.runs.values()), default=0)

    @property
    def throughput(self) -> float | None:
        """Samples per second of all ranks together, warm-up excluded."""
        rates = [run.throughput for run in self.runs.values()]
        return sum(filter(None, rates)) if rates and None not in rates else None

    @cached_property
    def times(self) -> pandas.DataFrame | None:
        """Where every rank's time went, see `rank_times`; None if too short."""
        return rank_times({number: run for number, run in self.runs.items() if run.steps})

    def speedup(self, one: RunData) -> float | None:
        """Return samples/s over those of `one`, the same pipeline in one process.

        ValueError where it was another pipeline, or ran on other hardware.
        """
        theirs = {**one.asked.to_dict(), "machine": one.machine.name}
        ours = {**self.asked.to_dict(), "machine": self.machine.name}
        differ = [name for name in ours if ours[name] != theirs[name] and name not in FREE]
        if differ:
            raise ValueError(
                f"{', '.join(differ)} differ: compare with lk.run(ranks.alone), where they ran."
            )
        return self.throughput / one.throughput if self.throughput and one.throughput else None

    def efficiency(self, one: RunData) -> float | None:
        """Return the (weak) scaling efficiency, 0 to 1: the speed-up over `one` per rank."""
        speedup = self.speedup(one)
        return speedup and speedup / len(self.runs)

    # As text

    @property
    def numbers(self) -> str:
        """The measured numbers in one line."""
        first = self.first
        if self.throughput is None or self.times is None or first is None:
            return f"{self.steps} steps: too few to measure"
        shares = self.times.mean()
        text = (
            f"{self.throughput:.0f} samples/s together, "
            f"waiting for data {shares.wait:.0%}, for each other {shares.others:.0%}, "
            f"exchanging gradients {shares.transfer:.0%}"
        )
        return "; ".join(filter(None, [text, first.noise]))

    @property
    def what(self) -> str:
        """The number of ranks, and what was set."""
        knobs = as_typed(self.asked.changed())
        starve = f"starve={self.starve!r}" if self.starve else ""
        return ", ".join(filter(None, (str(self.world_size), knobs, starve)))


def rank_times(runs: Mapping[int, RunData]) -> pandas.DataFrame | None:
    """Return where the measured steps of ranks that train together went; None of few steps.

    A row a rank. It waits for data (`wait`), for another's gradients (`others`), and for the
    exchange as far as it was not overlapped (`transfer`); `compute` is without these, `other`
    copies and Python between steps: shares of wall time, 0 to 1. A step took `step_ms` in the mean
    of `steps`; `exchanging` is the share of them that exchanged gradients.

    A bench's exchange has two stamps: a rank's gradients were complete, and all were averaged.
    Nothing stamps that of a watched script, where all but the wait for data may be waiting for the
    others; None where its ranks are not in step.
    """
    import pandas

    ranks = [*runs.values()]
    stop = min((run.steps for run in ranks), default=0)
    start = max((run.warmup for run in ranks), default=0)
    if stop - start < 2:
        return None
    parts = np.stack([split_steps(run.stamps[start - 1 : stop]) for run in ranks])
    wait, _, compute, _, _ = np.moveaxis(parts, 2, 0)
    step = np.maximum(parts.sum(axis=2), 1e-9)
    complete, averaged = (
        np.nan_to_num([run.each(moment)[start:stop] for run in ranks]) / 1e9
        for moment in MOMENTS["comm"]
    )  # 0: it was not stamped
    exposed = np.clip(averaged - complete, 0, None)
    others = np.clip(complete.max(axis=0) - complete, 0, exposed)
    if any(run.watched for run in ranks):
        ends = np.stack([run.host_ns[start:stop, DONE] for run in ranks]) / 1e9
        if np.median(np.ptp(ends, axis=0)) > np.median(step):
            return None
        others = step - wait
    spent = [wait, np.clip(compute - exposed, 0, None), others, np.clip(exposed - others, 0, None)]
    spent.append(np.clip(step - sum(spent), 0, None))
    shares = np.sum(spent, axis=2).T / step.sum(axis=1, keepdims=True)
    return pandas.DataFrame(shares, [*runs], list(RANK_PARTS)).assign(
        step_ms=1e3 * step.mean(),
        steps=stop - start,
        exchanging=(complete > 0).mean(axis=1),
    )


def delays_of(runs: Iterable[RunData | RanksData]) -> str:
    """Return the simulated delays behind the runs' numbers; "" if there are none."""
    delays = (run.pipeline.simulated_delay or "none" for run in runs if run.throughput is not None)
    found = dict.fromkeys(delays)
    return "" if found.keys() <= {"none"} else f"simulated delay: {' / '.join(found)}"
