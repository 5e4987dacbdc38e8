"""What one run tells of its work, so that another setting of it can be simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.instruments.loader_work import ItemTimes
from labkit.prediction.loader_simulation import (
    ONE_BY_ONE,
    RUN_AHEAD,
    CannotPredict,
    GpuWork,
    Load,
    coldness,
)
from labkit.results.core_use import CoreUse
from labkit.results.run_data import RunData
from labkit.spec import Pipeline
from labkit.stamps.event_shapes import fits

if TYPE_CHECKING:
    import pandas

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
TIMES = ["cpu", "wait", "line", "collate_cpu", "collate_wait", "collate_line", "between"]
STRETCHES = 4  # of waiting and computing that a batch is prepared in
FEW_AFTER = 5  # after short or long waits, to tell what those do
MIN_BATCHES = 4  # measured, to predict from
HANDOFF = ("main_wall", "touch", "share", "worker", "warm", "cold")
TAKE_IN_RUN = 1.3  # taking a batch in a running pipeline, over taking it from one idle worker
# What an item costs more after a wait if no core was at work meanwhile. It was 0.6 on an EPYC VM;
# on a Xeon VM items cost as much beside 12 busy workers as alone (0 to 0.15 beside 4 to 8)
CHILL = 0.2
SPINS = 0.1  # cores beyond what is accounted for, above which threads are said to spin
WAITS_OVER_CPU = 0.2  # an item whose waiting is this much of its CPU time is one that waits


class RunCosts:
    """What one run tells of its costs: s, per batch or step, warm-up left out."""

    def __init__(self, run: RunData):
        """Read a run.

        Raises CannotPredict where it tells too little.
        """
        known = run.pipeline
        if not isinstance(known, Pipeline):
            raise CannotPredict(
                "a watched loader does not show what items cost: tune(...) measures it"
            )
        if not run.throughput or run.steps - run.warmup < 2:
            raise CannotPredict("the run has too few steps: give it more")
        self.run = run
        self.pipeline = known
        self.throughput = run.throughput
        self.batches = _batches_of(run)
        self.on_cpu = run.machine.kind == "cpu"
        self.cores = run.machine.cpu_cores or 1  # that the loop and its workers share
        # Threads that a step takes while it computes
        self.host_threads = (run.machine.threads or 1) if self.on_cpu else 1
        stamps = run.stamps[run.warmup :]
        asked, ready, copies, copied, begin, end = stamps.T
        self.step_s = float(end[-1] - asked[0]) / len(stamps)
        self.waited = ready - asked  # for the batch
        self.copy = np.maximum(copied - copies, 0)
        self.device = end - begin  # that it computes
        # What handing a batch over takes: measured at the end of the run, in µs there
        measured = run.event("handoff") or {}
        known_us = {name: measured.get(f"{name}_us") for name in HANDOFF}
        self.handoff = {
            name: us / 1e6 for name, us in known_us.items() if us is not None and us >= 0
        }
        # The CPU time of the compute, or of its launches, after no wait; what a long one adds to it
        self.host, self.cold = self._on_cores() if self.on_cpu else (_launches(run), 0.0)
        # The CPU time of an ordinary step, where the device is the CPU
        self.model = float(np.median(self.host)) if self.on_cpu else 0.0
        # The loop's own time in a step
        around = np.median(begin - ready) if self.on_cpu else 0.0
        over = end if self.on_cpu else run.issued[run.warmup :]
        self.around = max(0.0, float(np.median(asked[1:] - over[:-1]) + around))
        # (batches, parts): the CPU time and the waiting of preparing each batch
        self.cpus = self._while_cores_are_busy()[:, None] * _profile(self.batches.item_cpu)
        self.waits = self.batches.wait.to_numpy()[:, None] * _profile(self.batches.item_wait)
        self.spin = self._spin()

    def _on_cores(self) -> tuple[np.ndarray, float]:
        """Return `host` and `cold` where the CPU is the device."""
        own = self.run.thread_s[self.run.warmup :]
        seen = ~np.isnan(own) & (self.device > 0)
        ran = np.minimum(1.0, own[seen] / self.device[seen])
        share = np.median(ran) if seen.any() else 1.0
        waited = self.waited
        if self.pipeline.num_workers == 0:  # not all of it was waiting: it prepared its data
            lump = ONE_BY_ONE if self.batches.item_cpu.iloc[0] else 1.0
            slept = np.median(self.batches.wait + self.batches.collate_wait)
            waited = np.full(len(waited), lump * slept)
        host = np.where(seen, own, self.device * share)
        return _warm_and_cold(host, waited, self.handoff)

    @property
    def _prepared(self) -> pandas.Series:
        """The CPU time (batches,) of a loader process for each batch."""
        return self.batches.cpu + self.batches.collate_cpu + self.batches.between

    def _while_cores_are_busy(self) -> np.ndarray:
        """Return the CPU time (batches,) of fetching a batch's samples, as while cores are busy."""
        batches = self.batches
        workers = self.pipeline.num_workers
        company = 0.0  # threads that computed, on average, while a loader process waited
        if workers:
            worker = float(np.median(self._prepared)) / workers
            company = (self.model + (workers - 1) * worker) / self.step_s
        asleep = max(0.0, 1 - company / self.cores)
        waits = batches.wait > WAITS_OVER_CPU * batches.cpu
        return (batches.cpu / (1 + CHILL * asleep * waits)).to_numpy()

    def _spin(self) -> float:
        """Return the CPU time for which each of a step's other threads spins after it.

        It is what the run used beyond the step's threads and the loader.
        """
        others = self.host_threads - 1
        used = CoreUse.of(self.run).own
        if not others or used is None:
            return 0.0
        main = self.step_s - float(np.mean(self.batches.wait + self.batches.collate_wait))
        if self.pipeline.num_workers:
            main = self.model + self.around + float(np.mean(self._prepared))
        spun = used * self.step_s - main - self.model * others
        return spun / others if spun > SPINS * self.step_s else 0.0

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
        collate_cpu = (
            costs.collate_cpu.to_numpy()[batches] * scale + self.handoff.get("share", 0.0) * handed
        )
        host = self.host[rows] * (step if self.on_cpu else 1.0)
        host += self.handoff.get("touch", 0.0) * handed
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
            ahead=0 if self.run.no_events else RUN_AHEAD,  # or the host waits for each step
            host_threads=self.host_threads,
            spin=self.spin,
        )

    def _collate_wait(self, target: Pipeline, batches: np.ndarray) -> np.ndarray:
        """Return the waiting (batches,) of the collate step; a stated stall is the target's."""
        measured = self.batches.collate_wait.to_numpy()
        stall_s = self.pipeline.stall_ms / 1e3
        wait = (measured - stall_s * (measured > 0.9 * stall_s))[batches]
        if not target.stall_ms:
            return wait
        due = np.arange(len(batches)) % target.stall_every == target.stall_every - 1
        return wait + due * target.stall_ms / 1e3


def _batches_of(run: RunData) -> pandas.DataFrame:
    """Return what batches cost to prepare, a row each in the order of their start; times in s.

    `cpu` is the CPU time of fetching its samples, `wait` the time of that in which the process
    wanted no core; `collate_cpu` and `collate_wait` are those of the collate step, `between` is
    the CPU time of the process since the batch before; `item_cpu` and `item_wait` are lists, µs,
    of single samples: empty where not timed singly. The first batch of each process is left out,
    and what was begun after the last step.
    """
    import pandas

    rows = [row for event in run.packed("items") for row in event["rows"] if _is_sound(row)]
    if not rows:
        raise CannotPredict("its items were not timed (no stream's are): run it again")
    table = pandas.DataFrame(rows, columns=ItemTimes._fields).sort_values("start_ns", kind="stable")
    in_time = run.seconds(table.start_ns.to_numpy(float)) < run.stamps[-1, 5]
    table = table[(table.done > 0) & in_time]
    if len(table) < MIN_BATCHES:
        measured = f"{len(table)} batches were measured, {MIN_BATCHES} are needed"
        raise CannotPredict(f"only {measured}: give the run more steps or seconds")
    times = table[TIMES].astype(float) / 1e6
    times["wait"] = (times.wait - LINE_MISSED * times.line).clip(lower=0)
    times["collate_wait"] = (times.collate_wait - LINE_MISSED * times.collate_line).clip(lower=0)
    return times.assign(item_cpu=table.item_cpu, item_wait=table.item_wait)


def _is_sound(row: object) -> bool:
    """Return whether a row of an `items` event has the numbers of an `ItemTimes`."""
    return isinstance(row, list) and fits(row, "item_times") and len(row[-1]) == len(row[-2])


def _launches(run: RunData) -> np.ndarray:
    """Return the host's time to issue each step's compute, s; 0 where it waits for each step."""
    if run.no_events:
        return np.zeros(run.steps - run.warmup)
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
    tried = 1.0
    if len(early) >= FEW_AFTER and len(late) >= FEW_AFTER:
        tried = float(np.median(late) / np.median(early))
    elif handoff.get("warm"):  # tried at the end of the run, which itself has one kind of wait
        tried = handoff.get("cold", 0.0) / handoff["warm"]
    more = max(tried, 1.0) - 1
    warm = host / (1 + more * share)
    return warm, float(np.median(warm)) * more


def _drawn(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]


def _profile(items: pandas.Series) -> np.ndarray:
    """Return (batches, parts): which share of each batch's time its first, second ... part took."""
    parts = STRETCHES if items.iloc[0] else 1
    sums = np.array(
        [[part.sum() for part in np.array_split(np.array(each) / 1e6, parts)] for each in items]
    )
    total = sums.sum(axis=1, keepdims=True)
    return np.divide(sums, total, out=np.full(sums.shape, 1 / parts), where=total > 0)
