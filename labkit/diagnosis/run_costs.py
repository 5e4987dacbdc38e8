"""What one run tells of its work, so that another setting of it can be simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.loader_simulation import (
    ONE_BY_ONE,
    RUN_AHEAD,
    CannotPredict,
    GpuWork,
    Load,
    coldness,
)
from labkit.results.item_costs import ItemCosts, item_costs
from labkit.results.run import Run
from labkit.spec import Pipeline

STRETCHES = 4  # of waiting and computing that a batch is prepared in
FEW_AFTER = 5  # after short or long waits, to tell what those do
MIN_BATCHES = 4  # measured, to predict from
COLD_OVER_WARM = 1.4  # where not tried: measured between 1.3 and 1.5 on the machines at hand
# Of a `handoff` event, in µs there
HANDOFF = ("main_wall", "touch", "share", "worker", "warm", "cold")
TAKE_IN_RUN = 1.3  # taking a batch in a running pipeline, over taking it from one idle worker
# What an item costs more after a wait if no core was at work meanwhile. It was 0.6 on an EPYC VM;
# on a Xeon VM items cost as much beside 12 busy workers as alone (0 to 0.15 beside 4 to 8)
CHILL = 0.2
SPINS = 0.1  # cores beyond what is accounted for, above which threads are said to spin
WAITS_OVER_CPU = 0.2  # an item whose waiting is this much of its CPU time is one that waits


@dataclass(frozen=True, eq=False)
class RunCosts:
    """What one run tells of its costs: s, per batch or step, warm-up left out."""

    run: Run
    pipeline: Pipeline
    batches: ItemCosts  # what they cost to prepare, the first of each worker left out
    throughput: float  # samples/s

    @classmethod
    def of(cls, run: Run, pipeline: Pipeline | None = None) -> RunCosts:
        """Return what a run tells, read as if it were of `pipeline`: its own if that is None.

        Raises CannotPredict where it tells too little.
        """
        known = pipeline or run.pipeline
        if not isinstance(known, Pipeline):
            raise CannotPredict(
                "a watched loader does not show what items cost: tune(...) measures it"
            )
        batches = item_costs(run)
        if batches is None:
            raise CannotPredict("its items were not timed (no stream's are): run it again")
        if not run.throughput or run.steps - run.warmup < 2:
            raise CannotPredict("the run has too few steps: give it more")
        batches = batches.only((batches.number > 0) & (batches.start < run.stamps[-1, 5]))
        if len(batches) < MIN_BATCHES:
            measured = f"{len(batches)} batches were measured, {MIN_BATCHES} are needed"
            raise CannotPredict(f"only {measured}: give the run more steps or seconds")
        return cls(run, known, batches, run.throughput)

    # The machine

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.run.machine.kind == "cpu"

    @property
    def waits_for_steps(self) -> bool:
        """Whether the host waits for each step of the device."""
        return bool(self.run.no_events)

    @property
    def cores(self) -> float:
        """The cores that the loop and its workers share."""
        return self.run.machine.cpu_cores or 1

    @property
    def host_threads(self) -> int:
        """The threads that a step takes while it computes."""
        return (self.run.machine.threads or 1) if self.on_cpu else 1

    # A step

    @cached_property
    def _stamps(self) -> np.ndarray:
        """The moments of the measured steps (steps, 6), see `Run.stamps`."""
        return self.run.stamps[self.run.warmup :]

    @cached_property
    def step_s(self) -> float:
        """The time of the average step."""
        return float(self._stamps[-1, 5] - self._stamps[0, 0]) / len(self._stamps)

    @cached_property
    def device(self) -> np.ndarray:
        """The time (steps,) that the device computes."""
        return self._stamps[:, 5] - self._stamps[:, 4]

    @cached_property
    def copy(self) -> np.ndarray:
        """The time (steps,) of the copy to it."""
        return np.maximum(self._stamps[:, 3] - self._stamps[:, 2], 0)

    @cached_property
    def _waited(self) -> np.ndarray:
        """The time (steps,) for which the loop waited for the batch."""
        return self._stamps[:, 1] - self._stamps[:, 0]

    @cached_property
    def _host_and_cold(self) -> tuple[np.ndarray, float]:
        """See `host` and `cold`."""
        if not self.on_cpu:
            none = np.zeros_like(self.device)
            return (none if self.waits_for_steps else _launches(self.run)), 0.0
        own = self.run.thread_s[self.run.warmup :]
        seen = ~np.isnan(own) & (self.device > 0)
        ran = np.minimum(1.0, own[seen] / self.device[seen])
        share = np.median(ran) if seen.any() else 1.0
        waited = self._waited
        if self.pipeline.num_workers == 0:  # not all of it was waiting: it prepared its data
            lump = ONE_BY_ONE if len(self.batches.item_cpu[0]) else 1.0
            slept = np.median(self.batches.wait + self.batches.collate_wait)
            waited = np.full(len(waited), lump * slept)
        host = np.where(seen, own, self.device * share)
        return _warm_and_cold(host, waited, self.handoff)

    @property
    def host(self) -> np.ndarray:
        """The CPU time (steps,) of the compute, or of its launches, after no wait."""
        return self._host_and_cold[0]

    @property
    def cold(self) -> float:
        """What a long wait adds to that, on a CPU."""
        return self._host_and_cold[1]

    @property
    def model(self) -> float:
        """The CPU time of an ordinary step, where the device is the CPU."""
        return float(np.median(self.host)) if self.on_cpu else 0.0

    @cached_property
    def around(self) -> float:
        """The loop's own time in a step."""
        asked, ready, _copy, _copied, begin, end = self._stamps.T
        if self.on_cpu:
            around = np.median(asked[1:] - end[:-1]) + np.median(begin - ready)
        else:
            around = np.median(asked[1:] - self.run.issued[self.run.warmup : -1])
        return max(0.0, float(around))

    @cached_property
    def spin(self) -> float:
        """The CPU time for which each of a step's other threads spins after it.

        It is what the run used beyond the step's threads and the loader.
        """
        others = self.host_threads - 1
        used = CoreUse.of(self.run).own
        if not others or used is None:
            return 0.0
        slept = float(np.mean(self.batches.wait + self.batches.collate_wait))
        main = self.step_s - slept
        loaded = 0.0
        if self.pipeline.num_workers:
            main = self.model + self.around
            loaded = float(np.mean(self._prepared))
        spun = used * self.step_s - main - loaded - self.model * others
        return spun / others if spun > SPINS * self.step_s else 0.0

    # The loader

    @cached_property
    def handoff(self) -> dict[str, float]:
        """What handing a batch over takes: measured at the end of the run."""
        handoff = {}
        measured = self.run.event("handoff") or {}
        for name in HANDOFF:
            value = measured.get(f"{name}_us")
            if isinstance(value, (int, float)) and value >= 0:
                handoff[name] = value / 1e6
        if "main_wall" not in handoff and self.pipeline.num_workers:
            at_once = np.sort(self._waited)[: max(1, len(self._waited) // 4)]
            handoff["main_wall"] = float(np.median(at_once))
        return handoff

    @property
    def _prepared(self) -> np.ndarray:
        """The CPU time (batches,) of a loader process for each batch."""
        return self.batches.cpu + self.batches.collate_cpu + self.batches.between

    @property
    def _company(self) -> float:
        """The threads that computed, on average, while a loader process waited."""
        workers = self.pipeline.num_workers
        if not workers:
            return 0.0
        worker = float(np.median(self._prepared)) / workers
        return (self.model + (workers - 1) * worker) / self.step_s

    @cached_property
    def cpus(self) -> np.ndarray:
        """The CPU time (batches, parts) of preparing each batch, as it is while cores are busy."""
        batches = self.batches
        asleep = max(0.0, 1 - self._company / self.cores)
        waits = batches.wait > WAITS_OVER_CPU * batches.cpu
        cpu = batches.cpu / (1 + CHILL * asleep * waits)
        return cpu[:, None] * _profile(batches.item_cpu)

    @cached_property
    def waits(self) -> np.ndarray:
        """The waiting (batches, parts) in preparing each batch."""
        return self.batches.wait[:, None] * _profile(self.batches.item_wait)

    # Another setting

    def work(self, target: Pipeline, step: float, steps: int, rng: np.random.Generator) -> Load:
        """Draw the work of `steps` batches of `target`; a step takes `step` times the measured."""
        old = self.pipeline
        costs = self.batches
        scale = target.batch_size / old.batch_size
        batches = _drawn(len(costs), steps, rng)
        waits = self.waits[batches] * scale
        more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
        if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
            more += ((target.prep_ms or 0) - scale * (old.prep_ms or 0)) / 1e3
        waits = np.maximum(waits + more / waits.shape[1], 0)
        rows = _drawn(len(self.host), steps, rng)
        handed = bool(target.num_workers) - bool(old.num_workers)  # batches come from a worker now
        share = self.handoff.get("share", 0.0) * handed
        touch = self.handoff.get("touch", 0.0) * handed
        collate_cpu = costs.collate_cpu[batches] * scale + share
        host = self.host[rows] * (step if self.on_cpu else 1.0) + touch
        collate_wait = self._collate_wait(target, batches)
        return Load(
            waits=np.column_stack([waits, np.maximum(collate_wait, 0)]),
            cpus=np.column_stack([self.cpus[batches] * scale, np.maximum(collate_cpu, 0)]),
            host=np.maximum(host, 0),
            cold=self.cold * step,
            chill=CHILL,
            put=self.handoff.get("worker", float(np.median(costs.between))),
            take=TAKE_IN_RUN * self.handoff.get("main_wall", 0.0),
            around=self.around,
            gpu=None if self.on_cpu else GpuWork(self.device[rows] * step, self.copy[rows] * scale),
            blocking=not (target.pin_memory and target.non_blocking),
            side_stream=target.prefetch_to_device,
            ahead=0 if self.waits_for_steps else RUN_AHEAD,
            host_threads=self.host_threads,
            spin=self.spin,
        )

    def _collate_wait(self, target: Pipeline, batches: np.ndarray) -> np.ndarray:
        """Return the waiting (batches,) of the collate step; a stated stall is the target's."""
        measured = self.batches.collate_wait
        stall_s = self.pipeline.stall_ms / 1e3
        wait = (measured - stall_s * (measured > 0.9 * stall_s))[batches]
        if not target.stall_ms:
            return wait
        due = np.arange(len(batches)) % target.stall_every == target.stall_every - 1
        return wait + due * target.stall_ms / 1e3


def _launches(run: Run) -> np.ndarray:
    """Return the host's time to issue each step's compute, s."""
    host_s = run.host_ns / 1e9
    spent = host_s[:, 3] - host_s[:, 2]
    ahead = run.stamps[:, 4] > run.issued
    # A full queue holds up a host that is more than a step ahead: such steps count for no more than
    # those in which it was not, or else than the shortest of the run, its first ones included
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= FEW_AFTER else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _warm_and_cold(
    host: np.ndarray, waited: np.ndarray, handoff: dict[str, float]
) -> tuple[np.ndarray, float]:
    """Split the steps' CPU time into what it is after no wait, and what a long wait adds."""
    share = coldness(waited)
    early = host[share < 0.1]
    late = host[share > 0.9]
    tried = COLD_OVER_WARM
    if len(early) >= FEW_AFTER and len(late) >= FEW_AFTER:
        tried = float(np.median(late) / np.median(early))
    elif "warm" in handoff:  # tried at the end of the run, which itself has one kind of wait
        both = handoff["warm"] and handoff.get("cold")
        tried = handoff["cold"] / handoff["warm"] if both else 1.0
    more = max(tried, 1.0) - 1
    warm = host / (1 + more * share)
    return warm, float(np.median(warm)) * more


def _drawn(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]


def _profile(items: np.ndarray) -> np.ndarray:
    """Return (batches, parts): which share of each batch's time its first, second ... part took."""
    parts = STRETCHES if len(items[0]) else 1
    sums = np.array([[part.sum() for part in np.array_split(each, parts)] for each in items])
    total = sums.sum(axis=1, keepdims=True)
    return np.divide(sums, total, out=np.full(sums.shape, 1 / parts), where=total > 0)
