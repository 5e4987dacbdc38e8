"""From a measured run to the work of another setting: what the simulation is fed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_changes import CannotPredict, Change
from labkit.analysis.loader_simulation import ONE_BY_ONE, Machine, Work, coldness
from labkit.results.item_costs import ItemCosts, item_costs

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


@dataclass(frozen=True)
class Measured:
    """What one run tells: s, per batch or step, warm-up left out."""

    pipeline: Any
    machine: Machine
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
    if run.watched:
        raise CannotPredict(
            "the loader was watched from outside, so nothing is known of what an item costs: "
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
    stamps = run.stamps[run.warmup :]
    costs = costs.only((costs.number > 0) & (costs.start < run.stamps[-1, 5]))
    if len(costs) < MIN_BATCHES:
        raise CannotPredict(
            f"only {len(costs)} batches were measured, {MIN_BATCHES} are needed: give the run more "
            "steps or seconds"
        )
    pipeline = run.pipeline
    on_cpu = run.machine.kind == "cpu"
    compute = stamps[:, 5] - stamps[:, 4]
    if on_cpu:
        own = run.thread_s[run.warmup :]
        seen = ~np.isnan(own) & (compute > 0)
        share = np.median(np.minimum(1.0, own[seen] / compute[seen])) if seen.any() else 1.0
        host = np.where(seen, own, compute * share)
        around = np.median(stamps[1:, 0] - stamps[:-1, 5]) + np.median(stamps[:, 4] - stamps[:, 1])
    else:
        host = _launches(run)
        around = np.median(stamps[1:, 0] - run.issued[run.warmup : -1])
    facts = _handoff(run)
    if "main_wall" not in facts and pipeline.num_workers:
        early = np.sort(stamps[:, 1] - stamps[:, 0])[: max(1, len(stamps) // 4)]
        facts["main_wall"] = float(np.median(early))  # of the batches that came at once
    cold = 0.0
    if on_cpu:
        waited = stamps[:, 1] - stamps[:, 0]
        if pipeline.num_workers == 0:  # it was not waiting all that time: it prepared its data
            lump = 1.0 if not len(costs.item_cpu[0]) else ONE_BY_ONE
            waited = np.full(len(waited), lump * np.median(costs.wait + costs.collate_wait))
        host, cold = _warm_and_cold(host, waited, facts)
    stall = costs.collate_wait > 0.9 * pipeline.stall_ms / 1e3
    company = _company(costs, stamps, float(np.median(host)) if on_cpu else 0.0, pipeline)
    return Measured(
        pipeline=pipeline,
        machine=Machine(run.machine.cpu_cores or 1),
        costs=costs,
        chilled=_chilled(costs, company / (run.machine.cpu_cores or 1)),
        stall=stall if pipeline.stall_ms else np.zeros(len(costs), bool),
        host=host,
        cold=cold,
        device=None if on_cpu else compute,
        copy=None if on_cpu else np.maximum(stamps[:, 3] - stamps[:, 2], 0),
        around=max(0.0, float(around)),
        host_threads=(run.machine.threads or 1) if on_cpu else 1,
        handoff=facts,
    )


def _launches(run: Any) -> np.ndarray:
    """Return the host's time to issue each step's compute, s.

    A full queue holds up a host that is more than a step ahead. Such steps count for no more than
    those in which it was not, or else than the shortest of the run, its first ones included.
    """
    t = np.array([step["t"] for step in run.steps_since(0)], dtype=float) / 1e9
    spent, ahead = t[:, 3] - t[:, 2], run.stamps[:, 4] > run.issued
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= MIN_STEPS else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _company(costs: ItemCosts, stamps: np.ndarray, host: float, pipeline: Any) -> float:
    """How many threads of the run computed, on average, while a loader process waited."""
    if not (workers := pipeline.num_workers):
        return 0.0  # the loop itself was waiting
    step = (stamps[-1, 5] - stamps[0, 0]) / len(stamps)
    worker = float(np.median(costs.cpu + costs.collate_cpu + costs.between)) / workers
    return (host + (workers - 1) * worker) / step


def _chilled(costs: ItemCosts, busy: float) -> np.ndarray:
    """Return (batches,): 1 where items do not wait, more the fewer cores were `busy` (0 to 1)."""
    waits = costs.wait > WAITS * costs.cpu
    return 1 + CHILL * max(0.0, 1 - busy) * waits


def _handoff(run: Any) -> dict[str, float]:
    """What handing a batch over takes, s: measured at the end of the run."""
    event = run.event("handoff") or {}
    return {
        name[:-3]: value / 1e6
        for name, value in event.items()
        if name.endswith("_us") and isinstance(value, (int, float)) and value >= 0
    }


def _warm_and_cold(
    host: np.ndarray, waited: np.ndarray, facts: dict[str, float]
) -> tuple[np.ndarray, float]:
    """Split the steps' CPU time into what it is after no wait, and what a long wait adds.

    Where the run itself had only one kind of wait, the other comes from steps that were tried at
    its end (`warm` and `cold` of the hand-off), or else from COLD_OVER_WARM.
    """
    share = coldness(waited)
    early, late = share < 0.1, share > 0.9
    tried = facts["cold"] / facts["warm"] if facts.get("warm") and facts.get("cold") else 1.0
    tried = max(1.0, tried) if "warm" in facts else COLD_OVER_WARM
    if early.sum() >= MIN_STEPS and late.sum() >= MIN_STEPS:
        tried = max(1.0, float(np.median(host[late]) / np.median(host[early])))
    warm = host / (1 + (tried - 1) * share)
    return warm, float(np.median(warm)) * (tried - 1)


def work_of(
    known: Measured, target: Any, change: Change, steps: int, rng: np.random.Generator
) -> Work:
    """Draw the work of `steps` batches of the `target` pipeline from what was measured."""
    old, costs = known.pipeline, known.costs
    pool = rng.integers(len(costs), size=len(costs))
    draws = pool[rng.integers(len(pool), size=steps)]
    waits, cpus = _fetching(known, target, draws, rng)
    scale, on_cpu = target.batch_size / old.batch_size, known.device is None
    collate_cpu = costs.collate_cpu[draws] * scale
    collate_wait = costs.collate_wait[draws] - known.stall[draws] * old.stall_ms / 1e3
    if target.stall_ms:
        due = np.arange(steps) % target.stall_every == target.stall_every - 1
        collate_wait = collate_wait + due * target.stall_ms / 1e3
    share = known.handoff.get("share", 0.0)
    collate_cpu = collate_cpu + share * (bool(target.num_workers) - bool(old.num_workers))
    waits = np.column_stack([waits, np.maximum(collate_wait, 0)])
    cpus = np.column_stack([cpus, np.maximum(collate_cpu, 0)])
    touch = known.handoff.get("touch", 0.0)
    touch *= bool(target.num_workers) - bool(old.num_workers)
    rows = rng.integers(len(known.host), size=len(known.host))[
        rng.integers(len(known.host), size=steps)
    ]
    return Work(
        waits=waits,
        cpus=cpus,
        host=np.maximum(known.host[rows] * (change.step if on_cpu else 1) + touch, 0),
        cold=np.full(steps, known.cold * change.step),
        chill=CHILL,
        put=known.handoff.get("worker", float(np.median(costs.between))),
        take=TAKE_IN_RUN * known.handoff.get("main_wall", 0.0),
        around=known.around,
        device=None if on_cpu else known.device[rows] * change.step,
        copy=None if on_cpu else known.copy[rows] * scale,
        blocking=not (target.pin_memory and target.non_blocking),
        side_stream=bool(target.prefetch_to_device),
        host_threads=known.host_threads,
    )


def _fetching(
    known: Measured, target: Any, draws: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return waiting and CPU time (batches, parts) of fetching the drawn batches' samples."""
    old, costs = known.pipeline, known.costs
    by_item = len(costs.item_cpu[0]) > 0
    scale = target.batch_size / old.batch_size
    cpu = costs.cpu[draws] / known.chilled[draws] * scale
    wait = costs.wait[draws] * scale
    parts = PARTS if by_item else 1
    weights_cpu = weights_wait = np.full((len(draws), parts), 1 / parts)
    if by_item:
        weights_cpu = _profile(costs.item_cpu, parts)[draws]
        weights_wait = _profile(costs.item_wait, parts)[draws]
    waits, cpus = wait[:, None] * weights_wait, cpu[:, None] * weights_cpu
    more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
    if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
        more += (target.prep_ms - scale * old.prep_ms) / 1e3
    return np.maximum(waits + more / parts, 0), cpus


def _profile(items: list[np.ndarray], parts: int) -> np.ndarray:
    """Return (batches, parts): which share of each batch's time its first, second ... part took."""
    shares = np.empty((len(items), parts))
    for row, times in enumerate(items):
        sums = [chunk.sum() for chunk in np.array_split(times, parts)]
        total = sum(sums)
        shares[row] = np.array(sums) / total if total > 0 else 1 / parts
    return shares
