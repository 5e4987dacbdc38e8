"""What one run tells of its work, so that another setting of it can be simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.instruments.loader_work import ItemTimes
from labkit.prediction.loader_simulation import RUN_AHEAD, CannotPredict, GpuWork, Load
from labkit.results.run_data import RunData
from labkit.spec import Pipeline
from labkit.stamps.event_shapes import fits

if TYPE_CHECKING:
    import pandas

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
STRETCHES = 4  # of waiting and computing that a batch of single samples is prepared in
FEW_CALM = 5  # steps of a host that no full queue held up
MIN_BATCHES = 4  # measured, to predict from
TAKE_IN_RUN = 1.3  # taking a batch in a running pipeline, over taking it from one idle worker


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
        self.batches, self.parts = _batches_of(run)
        self.handoff = run.event("handoff") or {}  # measured at the end of the run, in µs
        self.cores = run.machine.cpu_cores or 1  # that the loop and its workers share
        self.on_cpu = run.machine.kind == "cpu"
        asked, ready, copies, copied, begin, end = run.stamps[run.warmup :].T
        self.copy = np.maximum(copied - copies, 0)
        self.device = end - begin  # that it computes
        # The CPU time of the compute, or of its launches; and the loop's own in a step
        if self.on_cpu:
            self.host = self._on_cores()
            around = np.median(asked[1:] - end[:-1]) + np.median(begin - ready)
        else:
            self.host = _launches(run)
            around = np.median(asked[1:] - run.issued[run.warmup : -1])
        self.around = max(0.0, float(around))

    def _on_cores(self) -> np.ndarray:
        """Return the CPU time of each step's compute, about that where it was not read."""
        own = self.run.each("cpu")[self.run.warmup :] / 1e9
        seen = ~np.isnan(own) & (self.device > 0)
        share = np.median(np.minimum(1.0, own[seen] / self.device[seen])) if seen.any() else 1.0
        return np.where(seen, own, self.device * share)

    def work(self, target: Pipeline, step: float, steps: int, rng: np.random.Generator) -> Load:
        """Draw the work of `steps` batches of `target`; a step takes `step` times the measured."""
        old = self.pipeline
        scale = target.batch_size / old.batch_size
        costs = self.batches.iloc[_drawn(len(self.batches), steps, rng)]
        rows = _drawn(len(self.host), steps, rng)
        more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
        if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
            more += ((target.prep_ms or 0) - scale * (old.prep_ms or 0)) / 1e3
        # Where a stall is stated, it is the target's
        stall_s, old_stall_s = target.stall_ms / 1e3, old.stall_ms / 1e3
        is_due = np.arange(steps) % target.stall_every == target.stall_every - 1
        stalled = costs.collate_wait > 0.9 * old_stall_s
        collate_wait = costs.collate_wait - old_stall_s * stalled + stall_s * is_due
        host = self.host[rows]
        put_us = self.handoff.get("worker_us")
        return Load(
            waits=_in_parts(costs.wait * scale + more, self.parts, collate_wait),
            cpus=_in_parts(costs.cpu * scale, self.parts, costs.collate_cpu * scale),
            host=host * step if self.on_cpu else host,
            put=float(self.batches.between.median()) if put_us is None else max(0.0, put_us) / 1e6,
            take=TAKE_IN_RUN * max(0.0, self.handoff.get("main_wall_us") or 0.0) / 1e6,
            around=self.around,
            gpu=None if self.on_cpu else GpuWork(self.device[rows] * step, self.copy[rows] * scale),
            blocking=not (target.pin_memory and target.non_blocking),
            side_stream=target.prefetch_to_device,
            ahead=0 if self.run.no_events else RUN_AHEAD,  # or the host waits for each step
            host_threads=(self.run.machine.threads or 1) if self.on_cpu else 1,
        )


def _in_parts(fetching: pandas.Series, parts: int, collating: pandas.Series) -> np.ndarray:
    """Return (batches, parts + 1): the times of fetching in so many parts, and of collating."""
    each = np.maximum(fetching.to_numpy(), 0)[:, None] / parts
    return np.column_stack([np.repeat(each, parts, axis=1), np.maximum(collating, 0)])


def _batches_of(run: RunData) -> tuple[pandas.DataFrame, int]:
    """Return what batches cost to prepare, a row each in the order of their start; times in s.

    And in how many stretches that comes. `cpu` is the CPU time of fetching its samples, `wait` the
    time of that in which the process wanted no core; `collate_cpu` and `collate_wait` are
    those of the collate step, `between` is the CPU time of the process since the batch before. The
    first batch of each process is left out, and what was begun after the last step.
    """
    import pandas

    width = len(ItemTimes._fields)  # older records have more
    timed = [row for event in run.all("items") for row in event["rows"]]
    rows = [row[:width] for row in timed if fits(row, "item_times")]
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
    return times, STRETCHES if table.one_by_one[0] else 1


def _launches(run: RunData) -> np.ndarray:
    """Return the host's time to issue each step's compute, s; 0 where it waits for each step."""
    if run.no_events:
        return np.zeros(run.steps - run.warmup)
    host_s = run.host_ns / 1e9
    spent = host_s[:, 3] - host_s[:, 2]
    # A full queue holds up a host that is more than a step ahead: such steps count for no more than
    # those in which it was not, or else than the shortest of the run, its first ones included
    ahead = run.stamps[:, 4] > run.issued
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= FEW_CALM else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _drawn(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]
