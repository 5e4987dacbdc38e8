"""From a measured run to the work of another setting: what the simulation is fed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_simulation import ONE_BY_ONE, Work, coldness
from labkit.results.timeline import ItemCosts, item_costs

PARTS = 4  # stretches of waiting and computing that a batch is prepared in
MIN_STEPS = 5  # after short or long waits, to tell what those do
COLD_OVER_WARM = 1.4  # where not tried: measured between 1.3 and 1.5 on the machines at hand
# Taking a batch in a running pipeline, over taking it from one worker that does nothing else. From
# the development workloads of tests/benchmarks/prediction.py, as CHILL: 1.0 to 1.3 do as well.
TAKE_IN_RUN = 1.3
# What an item takes more behind a wait if no core was at work meanwhile (0.5 to 0.8 there).
CHILL = 0.6
WAITS = 0.2  # an item whose waiting is this much of its CPU time is one that waits
MIN_BATCHES = 4  # measured, to predict from


class CannotPredict(Exception):
    """What a run does not tell, and what to do about it."""


@dataclass(frozen=True)
class Measured:
    """What one run tells: s, per batch or step, warm-up left out."""

    pipeline: Any
    cores: int
    costs: ItemCosts
    chilled: np.ndarray  # (batches,) what fetching took, over what it takes while cores are at work
    stall: np.ndarray  # (batches,) whether the batch met a stated stall
    host: np.ndarray  # (steps,) CPU time of the step in the loop: of its launches, on a GPU
    cold: float  # what it takes more after a long wait
    device: np.ndarray | None  # (steps,) time on a device of its own,
    copy: np.ndarray | None  # and of the copy to it
    around: float
    host_threads: int
    handoff: dict[str, float]  # s


def measured(run: Any) -> Measured:
    """Read off `run` what predictions need; raise CannotPredict where it lacks something."""
    costs, pipeline = _batches(run), run.pipeline
    on_cpu, cores = run.machine.kind == "cpu", run.machine.cpu_cores or 1
    stamps = run.stamps[run.warmup :]
    compute, waited = stamps[:, 5] - stamps[:, 4], stamps[:, 1] - stamps[:, 0]
    handoff = {
        name[:-3]: value / 1e6  # what handing a batch over takes: measured at the end of the run
        for name, value in (run.event("handoff") or {}).items()
        if name.endswith("_us") and isinstance(value, (int, float)) and value >= 0
    }
    if "main_wall" not in handoff and pipeline.num_workers:  # the batches that came at once
        handoff["main_wall"] = float(np.median(np.sort(waited)[: max(1, len(stamps) // 4)]))
    cold = 0.0
    if on_cpu:
        own = run.thread_s[run.warmup :]
        seen = ~np.isnan(own) & (compute > 0)
        share = np.median(np.minimum(1.0, own[seen] / compute[seen])) if seen.any() else 1.0
        host = np.where(seen, own, compute * share)
        around = np.median(stamps[1:, 0] - stamps[:-1, 5]) + np.median(stamps[:, 4] - stamps[:, 1])
        if pipeline.num_workers == 0:  # it was not waiting all that time: it prepared its data
            lump = 1.0 if not len(costs.item_cpu[0]) else ONE_BY_ONE
            waited = np.full(len(waited), lump * np.median(costs.wait + costs.collate_wait))
        host, cold = _warm_and_cold(host, waited, handoff)
    else:
        host = _launches(run)
        around = np.median(stamps[1:, 0] - run.issued[run.warmup : -1])
    company = 0.0  # threads of the run that computed, on average, while a loader process waited
    if workers := pipeline.num_workers:
        step = (stamps[-1, 5] - stamps[0, 0]) / len(stamps)
        worker = float(np.median(costs.cpu + costs.collate_cpu + costs.between)) / workers
        company = ((float(np.median(host)) if on_cpu else 0.0) + (workers - 1) * worker) / step
    return Measured(
        pipeline=pipeline,
        cores=cores,
        costs=costs,
        # Items that wait take more behind it, the fewer cores were at work meanwhile
        chilled=1 + CHILL * max(0.0, 1 - company / cores) * (costs.wait > WAITS * costs.cpu),
        stall=(costs.collate_wait > 0.9 * pipeline.stall_ms / 1e3) & bool(pipeline.stall_ms),
        host=host,
        cold=cold,
        device=None if on_cpu else compute,
        copy=None if on_cpu else np.maximum(stamps[:, 3] - stamps[:, 2], 0),
        around=max(0.0, float(around)),
        host_threads=(run.machine.threads or 1) if on_cpu else 1,
        handoff=handoff,
    )


def _batches(run: Any) -> ItemCosts:
    """Return what the batches cost to prepare, the first of each worker left out."""
    if run.watched:
        raise CannotPredict(
            "the loader was watched from outside, which does not show what an item costs: "
            "tune(...) measures it"
        )
    costs = item_costs(run)
    if costs is None:
        raise CannotPredict(
            "this record holds no times of single items (it was made before labkit took them): "
            "run it again"
        )
    if run.utilization is None:
        raise CannotPredict("the run has too few steps: give it more")
    costs = costs.only((costs.number > 0) & (costs.start < run.stamps[-1, 5]))
    if len(costs) < MIN_BATCHES:
        raise CannotPredict(
            f"only {len(costs)} batches were measured, {MIN_BATCHES} are needed: give the run more "
            "steps or seconds"
        )
    return costs


def _launches(run: Any) -> np.ndarray:
    """Return the host's time to issue each step's compute, s.

    A full queue holds up a host that is more than a step ahead. Such steps count for no more than
    those in which it was not, or else than the shortest of the run, its first ones included.
    """
    t = np.array([step["t"] for step in run.steps_since(0)], dtype=float) / 1e9
    spent, ahead = t[:, 3] - t[:, 2], run.stamps[:, 4] > run.issued
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= MIN_STEPS else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _warm_and_cold(
    host: np.ndarray, waited: np.ndarray, handoff: dict[str, float]
) -> tuple[np.ndarray, float]:
    """Split the steps' CPU time into what it is after no wait, and what a long wait adds.

    Where the run itself had only one kind of wait, the other comes from steps that were tried at
    its end (`warm` and `cold` of the hand-off), or else from COLD_OVER_WARM.
    """
    share = coldness(waited)
    early, late = share < 0.1, share > 0.9
    tried = COLD_OVER_WARM
    if "warm" in handoff:
        both = handoff["warm"] and handoff.get("cold")
        tried = max(1.0, handoff["cold"] / handoff["warm"]) if both else 1.0
    if early.sum() >= MIN_STEPS and late.sum() >= MIN_STEPS:
        tried = max(1.0, float(np.median(host[late]) / np.median(host[early])))
    warm = host / (1 + (tried - 1) * share)
    return warm, float(np.median(warm)) * (tried - 1)


def work_of(
    known: Measured, target: Any, step: float, steps: int, rng: np.random.Generator
) -> Work:
    """Draw the work of `steps` batches of the `target` pipeline from what was measured.

    `step` is the time of a step over that of the measured one.
    """
    old, costs, handoff = known.pipeline, known.costs, known.handoff
    scale, on_cpu = target.batch_size / old.batch_size, known.device is None
    batches = _drawn(len(costs), steps, rng)
    waits, cpus = _fetching(known, target, batches)
    collate_wait = costs.collate_wait[batches] - known.stall[batches] * old.stall_ms / 1e3
    if target.stall_ms:
        due = np.arange(steps) % target.stall_every == target.stall_every - 1
        collate_wait = collate_wait + due * target.stall_ms / 1e3
    handed = bool(target.num_workers) - bool(old.num_workers)  # batches that came from a worker
    collate_cpu = costs.collate_cpu[batches] * scale + handoff.get("share", 0.0) * handed
    rows = _drawn(len(known.host), steps, rng)
    host = known.host[rows] * (step if on_cpu else 1) + handoff.get("touch", 0.0) * handed
    return Work(
        waits=np.column_stack([waits, np.maximum(collate_wait, 0)]),
        cpus=np.column_stack([cpus, np.maximum(collate_cpu, 0)]),
        host=np.maximum(host, 0),
        cold=np.full(steps, known.cold * step),
        chill=CHILL,
        put=handoff.get("worker", float(np.median(costs.between))),
        take=TAKE_IN_RUN * handoff.get("main_wall", 0.0),
        around=known.around,
        device=None if on_cpu else known.device[rows] * step,
        copy=None if on_cpu else known.copy[rows] * scale,
        blocking=not (target.pin_memory and target.non_blocking),
        side_stream=bool(target.prefetch_to_device),
        host_threads=known.host_threads,
    )


def _drawn(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]


def _fetching(known: Measured, target: Any, batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return waiting and CPU time (batches, parts) of fetching the drawn batches' samples."""
    old, costs = known.pipeline, known.costs
    scale = target.batch_size / old.batch_size
    cpu = (costs.cpu[batches] / known.chilled[batches] * scale)[:, None]
    wait = (costs.wait[batches] * scale)[:, None]
    parts = PARTS if len(costs.item_cpu[0]) else 1
    waits = wait * _profile(costs.item_wait, parts)[batches]
    cpus = cpu * _profile(costs.item_cpu, parts)[batches]
    more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
    if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
        more += (target.prep_ms - scale * old.prep_ms) / 1e3
    return np.maximum(waits + more / parts, 0), cpus


def _profile(items: list[np.ndarray], parts: int) -> np.ndarray:
    """Return (batches, parts): which share of each batch's time its first, second ... part took."""
    shares = np.full((len(items), parts), 1 / parts)
    for row, times in enumerate(items):
        sums = [chunk.sum() for chunk in np.array_split(times, parts)]
        if total := sum(sums):
            shares[row] = np.array(sums) / total
    return shares
