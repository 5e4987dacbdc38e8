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
from labkit.results.run_data import RunData
from labkit.spec import Pipeline
from labkit.stamps.event_shapes import fits

if TYPE_CHECKING:
    import pandas

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
STRETCHES = 4  # of waiting and computing that a batch is prepared in
FEW_AFTER = 5  # after short or long waits, to tell what those do
MIN_BATCHES = 4  # measured, to predict from
HANDOFF = ("main_wall", "touch", "share", "worker", "warm", "cold")
TAKE_IN_RUN = 1.3  # taking a batch in a running pipeline, over taking it from one idle worker
# What an item costs more after a wait if no core was at work meanwhile. It was 0.6 on an EPYC VM;
# on a Xeon VM items cost as much beside 12 busy workers as alone (0 to 0.15 beside 4 to 8)
CHILL = 0.2
WAITS_OVER_CPU = 0.2  # an item whose waiting is this much of its CPU time is one that waits


class RunCosts:
    """What one run tells of its costs: s, per batch or step, warm-up left out."""

    def __init__(self, run: RunData):
        """Read a run.

        Raises CannotPredict where it tells too little.
        """
        if not isinstance(run.pipeline, Pipeline):
            raise CannotPredict(
                "a watched loader does not show what items cost: tune(...) measures it"
            )
        if not run.throughput or run.steps - run.warmup < 2:
            raise CannotPredict("the run has too few steps: give it more")
        self.run = run
        self.pipeline = run.pipeline
        self.throughput = run.throughput
        self.batches = _batches_of(run)
        self.cores = run.machine.cpu_cores or 1  # that the loop and its workers share
        self.on_cpu = run.machine.kind == "cpu"
        self.threads = (run.machine.threads or 1) if self.on_cpu else 1  # that a step computes with
        asked, ready, copies, copied, begin, end = run.stamps[run.warmup :].T
        self.step_s = float(end[-1] - asked[0]) / len(asked)
        self.copy = np.maximum(copied - copies, 0)
        self.device = end - begin  # that it computes
        # What handing a batch over takes: measured at the end of the run, in µs there
        measured = run.event("handoff") or {}
        known_us = {name: measured.get(f"{name}_us") for name in HANDOFF}
        self.handoff = {
            name: us / 1e6 for name, us in known_us.items() if us is not None and us >= 0
        }
        # The CPU time of the compute, or of its launches, after no wait; what a long one adds to it
        if self.on_cpu:
            self.host, self.cold = self._on_cores(ready - asked)
        else:
            self.host, self.cold = _launches(run), 0.0
        # The loop's own time in a step
        over = end if self.on_cpu else run.issued[run.warmup :]
        before = np.median(begin - ready) if self.on_cpu else 0.0
        self.around = max(0.0, float(np.median(asked[1:] - over[:-1]) + before))
        # (batches, parts): the CPU time and the waiting of preparing each batch
        self.cpus = self._while_cores_are_busy()[:, None] * _profile(self.batches.item_cpu)
        self.waits = self.batches.wait.to_numpy()[:, None] * _profile(self.batches.item_wait)

    def _on_cores(self, waited: np.ndarray) -> tuple[np.ndarray, float]:
        """Return `host` and `cold` where the CPU is the device, of steps that waited so long."""
        own = self.run.thread_s[self.run.warmup :]
        seen = ~np.isnan(own) & (self.device > 0)
        share = np.median(np.minimum(1.0, own[seen] / self.device[seen])) if seen.any() else 1.0
        host = np.where(seen, own, self.device * share)
        if self.pipeline.num_workers == 0:  # not all of it was waiting: it prepared its data
            lump = ONE_BY_ONE if self.batches.item_cpu.iloc[0] else 1.0
            slept = np.median(self.batches.wait + self.batches.collate_wait)
            waited = np.full(len(waited), lump * slept)
        cold = coldness(waited)
        early, late = host[cold < 0.1], host[cold > 0.9]
        tried = 1.0
        if len(early) >= FEW_AFTER and len(late) >= FEW_AFTER:
            tried = float(np.median(late) / np.median(early))
        elif self.handoff.get("warm"):  # tried at the end of the run, which has one kind of wait
            tried = self.handoff.get("cold", 0.0) / self.handoff["warm"]
        more = max(tried, 1.0) - 1
        warm = host / (1 + more * cold)
        return warm, float(np.median(warm)) * more

    def _while_cores_are_busy(self) -> np.ndarray:
        """Return the CPU time (batches,) of fetching a batch's samples, as while cores are busy."""
        batches = self.batches
        workers = self.pipeline.num_workers
        company = 0.0  # threads that computed, on average, while a loader process waited
        if workers:
            step = float(np.median(self.host)) if self.on_cpu else 0.0
            prepared = float(np.median(batches.cpu + batches.collate_cpu + batches.between))
            company = (step + (workers - 1) * prepared / workers) / self.step_s
        asleep = max(0.0, 1 - company / self.cores)
        waits = batches.wait > WAITS_OVER_CPU * batches.cpu
        return (batches.cpu / (1 + CHILL * asleep * waits)).to_numpy()

    def work(self, target: Pipeline, step: float, steps: int, rng: np.random.Generator) -> Load:
        """Draw the work of `steps` batches of `target`; a step takes `step` times the measured."""
        old = self.pipeline
        scale = target.batch_size / old.batch_size
        costs = self.batches.iloc[_drawn(len(self.batches), steps, rng)]
        rows = _drawn(len(self.host), steps, rng)
        more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
        if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
            more += ((target.prep_ms or 0) - scale * (old.prep_ms or 0)) / 1e3
        waits = self.waits[costs.index] * scale
        waits = np.maximum(waits + more / waits.shape[1], 0)
        # Where a stall is stated, it is the target's
        stall_s, old_stall_s = target.stall_ms / 1e3, old.stall_ms / 1e3
        is_due = np.arange(steps) % target.stall_every == target.stall_every - 1
        stalled = costs.collate_wait > 0.9 * old_stall_s
        collate_wait = costs.collate_wait - old_stall_s * stalled + stall_s * is_due
        handed = bool(target.num_workers) - bool(old.num_workers)  # batches come from a worker now
        collate_cpu = costs.collate_cpu * scale + self.handoff.get("share", 0.0) * handed
        host = self.host[rows] * (step if self.on_cpu else 1.0)
        return Load(
            waits=np.column_stack([waits, np.maximum(collate_wait, 0)]),
            cpus=np.column_stack([self.cpus[costs.index] * scale, np.maximum(collate_cpu, 0)]),
            host=np.maximum(host + self.handoff.get("touch", 0.0) * handed, 0),
            cold=self.cold * step,
            chill=CHILL,
            put=self.handoff.get("worker", float(np.median(self.batches.between))),
            take=TAKE_IN_RUN * self.handoff.get("main_wall", 0.0),
            around=self.around,
            gpu=None if self.on_cpu else GpuWork(self.device[rows] * step, self.copy[rows] * scale),
            blocking=not (target.pin_memory and target.non_blocking),
            side_stream=target.prefetch_to_device,
            ahead=0 if self.run.no_events else RUN_AHEAD,  # or the host waits for each step
            host_threads=self.threads,
        )


def _batches_of(run: RunData) -> pandas.DataFrame:
    """Return what batches cost to prepare, a row each in the order of their start; times in s.

    `cpu` is the CPU time of fetching its samples, `wait` the time of that in which the process
    wanted no core; `collate_cpu` and `collate_wait` are those of the collate step, `between` is
    the CPU time of the process since the batch before; `item_cpu` and `item_wait` are lists, µs,
    of single samples: empty where not timed singly. The first batch of each process is left out,
    and what was begun after the last step.
    """
    import pandas

    rows = [
        row
        for event in run.all("items")
        for row in event["rows"]
        if fits(row, "item_times") and len(row[-1]) == len(row[-2])
    ]
    if not rows:
        raise CannotPredict("its items were not timed (no stream's are): run it again")
    table = pandas.DataFrame(rows, columns=ItemTimes._fields).sort_values("start_ns", kind="stable")
    in_time = run.seconds(table.start_ns.to_numpy(float)) < run.stamps[-1, 5]
    table = table[(table.done > 0) & in_time].reset_index(drop=True)
    if len(table) < MIN_BATCHES:
        measured = f"{len(table)} batches were measured, {MIN_BATCHES} are needed"
        raise CannotPredict(f"only {measured}: give the run more steps or seconds")
    times = table.loc[:, "cpu":"between"].astype(float) / 1e6
    for wait, line in (("wait", "line"), ("collate_wait", "collate_line")):
        times[wait] = (times[wait] - LINE_MISSED * times[line]).clip(lower=0)
    return times.join(table[["item_cpu", "item_wait"]])


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
