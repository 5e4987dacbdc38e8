"""What one run tells of its work, so that another setting of it can be simulated."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from labkit.diagnosis.loader_simulation import ONE_BY_ONE, CannotPredict, Work, coldness
from labkit.results.step_classes import ItemCosts, item_costs

PARTS = 4  # stretches of waiting and computing that a batch is prepared in
MIN_STEPS = 5  # after short or long waits, to tell what those do
MIN_BATCHES = 4  # measured, to predict from
COLD_OVER_WARM = 1.4  # where not tried: measured between 1.3 and 1.5 on the machines at hand
# Both from the same workloads: taking a batch in a running pipeline, over taking it from one worker
# that does nothing else; what an item takes more behind a wait if no core was at work meanwhile
TAKE_IN_RUN, CHILL = 1.3, 0.6
SPINS = 0.1  # cores beyond what is accounted for, above which threads are said to spin
WAITS = 0.2  # an item whose waiting is this much of its CPU time is one that waits


class Measured:
    """What one run tells: s, per batch or step, warm-up left out."""

    def __init__(self, run: Any):
        self.costs, self.pipeline = _batches(run), run.pipeline
        # {(pipeline, time of a step over the measured one): what each draw's simulation came to}
        self.simulated: dict[tuple[Any, float], list[tuple[float, ...]]] = {}
        self.missed: float | None = None  # root of its throughput over what is simulated for it
        self.on_cpu, self.cores = run.machine.kind == "cpu", run.machine.cpu_cores or 1
        self.host_threads = (run.machine.threads or 1) if self.on_cpu else 1
        costs, stamps, workers = self.costs, run.stamps[run.warmup :], self.pipeline.num_workers
        compute, waited = stamps[:, 5] - stamps[:, 4], stamps[:, 1] - stamps[:, 0]
        self.device = compute  # (steps,) time on the device,
        self.copy = np.maximum(stamps[:, 3] - stamps[:, 2], 0)  # and of the copy to it
        self.profiles = _profile(costs.item_cpu), _profile(costs.item_wait)
        # What handing a batch over takes: measured at the end of the run
        self.handoff = {
            name[:-3]: value / 1e6
            for name, value in (run.event("handoff") or {}).items()
            if name.endswith("_us") and isinstance(value, (int, float)) and value >= 0
        }
        if "main_wall" not in self.handoff and workers:
            at_once = np.sort(waited)[: max(1, len(stamps) // 4)]
            self.handoff["main_wall"] = float(np.median(at_once))
        # Per step, CPU time of its compute or its launches, and what these take more after a wait;
        # `around` is the loop's own
        if self.on_cpu:
            own = run.thread_s[run.warmup :]
            seen = ~np.isnan(own) & (compute > 0)
            share = np.median(np.minimum(1.0, own[seen] / compute[seen])) if seen.any() else 1.0
            around = np.median(stamps[1:, 0] - stamps[:-1, 5])
            around += np.median(stamps[:, 4] - stamps[:, 1])
            if workers == 0:  # not all of it was waiting: it prepared its data
                lump = ONE_BY_ONE if len(costs.item_cpu[0]) else 1.0
                waited = np.full(len(waited), lump * np.median(costs.wait + costs.collate_wait))
            host = np.where(seen, own, compute * share)
            self.host, self.cold = _warm_and_cold(host, waited, self.handoff)
        else:
            self.host, self.cold = _launches(run), 0.0
            around = np.median(stamps[1:, 0] - run.issued[run.warmup : -1])
        self.around = max(0.0, float(around))
        step_s = (stamps[-1, 5] - stamps[0, 0]) / len(stamps)
        model = float(np.median(self.host)) if self.on_cpu else 0.0
        company = 0.0  # threads of the run that computed, on average, while a loader process waited
        if workers:
            worker = float(np.median(costs.cpu + costs.collate_cpu + costs.between)) / workers
            company = (model + (workers - 1) * worker) / step_s
        # What is used beyond the step's threads and the loader: threads that spin behind a step
        self.spin, others = 0.0, self.host_threads - 1
        if others and (used := cores_used(run)[0]) is not None:
            slept = float(np.mean(costs.wait + costs.collate_wait))
            main = model + self.around if workers else step_s - slept
            loaded = float(np.mean(costs.cpu + costs.collate_cpu + costs.between)) if workers else 0
            spun = used * step_s - main - loaded - model * others
            self.spin = spun / others if spun > SPINS * step_s else 0.0
        # (batches,) what fetching took, over what it takes while cores are at work
        asleep = max(0.0, 1 - company / self.cores)
        self.chilled = 1 + CHILL * asleep * (costs.wait > WAITS * costs.cpu)

    def work(self, target: Any, step: float, steps: int, rng: np.random.Generator) -> Work:
        """Draw the work of `steps` batches of `target`; a step takes `step` times the measured."""
        old, costs, handoff, on_cpu = self.pipeline, self.costs, self.handoff, self.on_cpu
        scale = target.batch_size / old.batch_size
        batches = _drawn(len(costs), steps, rng)
        parts = self.profiles[0].shape[1]
        cpus = (costs.cpu[batches] / self.chilled[batches] * scale)[:, None]
        cpus = cpus * self.profiles[0][batches]
        waits = (costs.wait[batches] * scale)[:, None]
        more = ((target.io_ms or 0) - (old.io_ms or 0)) * target.batch_size / 1e3
        if target.dataset == "sleep":  # its delay is one of the batch, whatever the size
            more += (target.prep_ms - scale * old.prep_ms) / 1e3
        waits = np.maximum(waits * self.profiles[1][batches] + more / parts, 0)
        stall = old.stall_ms / 1e3  # the stated one, taken from the batches that met it
        collate_wait = (costs.collate_wait - stall * (costs.collate_wait > 0.9 * stall))[batches]
        if target.stall_ms:
            due = np.arange(steps) % target.stall_every == target.stall_every - 1
            collate_wait = collate_wait + due * target.stall_ms / 1e3
        handed = bool(target.num_workers) - bool(old.num_workers)  # batches come from a worker now
        collate_cpu = costs.collate_cpu[batches] * scale + handoff.get("share", 0.0) * handed
        rows = _drawn(len(self.host), steps, rng)
        host = self.host[rows] * (step if on_cpu else 1) + handoff.get("touch", 0.0) * handed
        return Work(
            waits=np.column_stack([waits, np.maximum(collate_wait, 0)]),
            cpus=np.column_stack([cpus, np.maximum(collate_cpu, 0)]),
            host=np.maximum(host, 0),
            cold=self.cold * step,
            chill=CHILL,
            put=handoff.get("worker", float(np.median(costs.between))),
            take=TAKE_IN_RUN * handoff.get("main_wall", 0.0),
            around=self.around,
            device=None if on_cpu else self.device[rows] * step,
            copy=None if on_cpu else self.copy[rows] * scale,
            blocking=not (target.pin_memory and target.non_blocking),
            side_stream=bool(target.prefetch_to_device),
            host_threads=self.host_threads,
            spin=self.spin,
        )


def cores_used(run: Any) -> tuple[float | None, ...]:
    """Return the cores that the run used while it trained, that others took, and in line for.

    What others use of the cores beyond this run's limit takes nothing from it.
    """
    end = run.length_s
    moments = run.seconds(np.array([sample["t_ns"] for sample in run.telemetry]))
    inside = [s for s, at in zip(run.telemetry, moments, strict=True) if 0 < at <= end]
    rows = [[s.get(name) for name in ("own_cpu", "cpu", "cpus", "line_cpu")] for s in inside]
    rows = [row for row in rows if None not in row[:3]]
    if not rows:
        return None, None, None
    used, everyone = (float(np.mean([row[i] * row[2] for row in rows])) for i in range(2))
    line = [row[3] * row[2] for row in rows if row[3] is not None]
    spare = rows[0][2] - (run.machine.cpu_cores or rows[0][2])  # which this run may not use
    others = max(0.0, everyone - used - max(0.0, spare))
    return used, others, float(np.mean(line)) if line else None


def launchers_in_line(run: Any) -> float | None:
    """Return the share of the time (0 to 1) in which threads that launch kernels had no core."""
    end = run.length_s
    moments = run.seconds(np.array([sample["t_ns"] for sample in run.telemetry]))
    inside = [s for s, at in zip(run.telemetry, moments, strict=True) if 0 < at <= end]
    shares = [s["launch_line"] for s in inside if s.get("launch_line") is not None]
    return min(float(np.mean(shares)), 1.0) if shares else None


@functools.lru_cache(maxsize=1)  # a slider asks many changes of one run
def known_of(run: Any, *_of_what_is_there_by_now: Any) -> Measured:
    """Return what `run` tells; the rest only says whether it tells more by now."""
    return Measured(run)


def _batches(run: Any) -> ItemCosts:
    """Return what the batches cost to prepare, the first of each worker left out."""
    if run.watched:
        raise CannotPredict("a watched loader does not show what items cost: tune(...) measures it")
    if (costs := item_costs(run)) is None:
        raise CannotPredict("its items were not timed (no stream's are): run it again")
    if not run.throughput or run.steps - run.warmup < 2:
        raise CannotPredict("the run has too few steps: give it more")
    costs = costs.only((costs.number > 0) & (costs.start < run.stamps[-1, 5]))
    if len(costs) < MIN_BATCHES:
        measured = f"{len(costs)} batches were measured, {MIN_BATCHES} are needed"
        raise CannotPredict(f"only {measured}: give the run more steps or seconds")
    return costs


def _launches(run: Any) -> np.ndarray:
    """Return the host's time to issue each step's compute, s."""
    t = run.host_ns / 1e9
    spent, ahead = t[:, 3] - t[:, 2], run.stamps[:, 4] > run.issued
    # A full queue holds up a host that is more than a step ahead: such steps count for no more than
    # those in which it was not, or else than the shortest of the run, its first ones included
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= MIN_STEPS else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _warm_and_cold(
    host: np.ndarray, waited: np.ndarray, handoff: dict[str, float]
) -> tuple[np.ndarray, float]:
    """Split the steps' CPU time into what it is after no wait, and what a long wait adds."""
    share, tried = coldness(waited), COLD_OVER_WARM
    early, late = share < 0.1, share > 0.9
    if "warm" in handoff:  # tried at the end of the run, which itself may have one kind of wait
        both = handoff["warm"] and handoff.get("cold")
        tried = max(1.0, handoff["cold"] / handoff["warm"]) if both else 1.0
    if early.sum() >= MIN_STEPS and late.sum() >= MIN_STEPS:
        tried = max(1.0, float(np.median(host[late]) / np.median(host[early])))
    warm = host / (1 + (tried - 1) * share)
    return warm, float(np.median(warm)) * (tried - 1)


def _drawn(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]


def _profile(items: list[np.ndarray]) -> np.ndarray:
    """Return (batches, parts): which share of each batch's time its first, second ... part took."""
    parts = PARTS if len(items[0]) else 1
    sums = np.array([[part.sum() for part in np.array_split(each, parts)] for each in items])
    total = sums.sum(axis=1, keepdims=True)
    return np.divide(sums, total, out=np.full(sums.shape, 1 / parts), where=total > 0)
