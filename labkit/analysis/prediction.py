"""`lk.predict(run, num_workers=4)`: what another setting would bring, from one measured run.

The loader is simulated (`loader_simulation`) with what the run's own items and steps cost.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_simulation import ONE_BY_ONE, CannotPredict, Simulation, Work, coldness
from labkit.knobs import check_names
from labkit.results.event_log import of_one_moment
from labkit.results.result import Result, Table
from labkit.results.timeline import ItemCosts, item_costs
from labkit.spec import KNOBS

DRAWS = 5  # simulated runs, each from its own bootstrap sample of what was measured
STEPS = 240  # of a simulated run at the most
# What the model may be wrong by, in the range beside the bootstrap's two standard errors: set so
# that over nine of ten settings are inside (26 on 6 workloads, tests/benchmarks/prediction.py)
MODEL_ERROR = {"input": 0.30, "device": 0.30, "cpu": 0.20}  # of the throughput
UTILIZATION_ERROR = {"input": 0.10, "device": 0.07, "cpu": 0.08}  # of wall time
WORTH = 0.05  # a gain below this is not called one, however quiet the run
DEVICE_BOUND, CPU_BOUND = 0.9, 0.9  # utilization; share of all core time
STRETCHED = 1.1  # a step that takes so much longer than alone is held back by who shares its cores

FREE = ("num_workers", "prefetch_factor", "io_ms", "prep_ms", "stall_ms", "stall_every", "steps",
        "seconds", "seed", "xray")  # fmt: skip
# A packed row's mask is made and added for each pair of tokens and block, in the time of so many
# FLOPs: so set that on a quiet CPU a step of width 32 takes 1.13 times the padded one's
MASK_FLOPS = 40
BATCH_FACTOR = 4  # the step's time at other batch sizes is a straight line only so far

PARTS = 4  # stretches of waiting and computing that a batch is prepared in
MIN_STEPS = 5  # after short or long waits, to tell what those do
MIN_BATCHES = 4  # measured, to predict from
COLD_OVER_WARM = 1.4  # where not tried: measured between 1.3 and 1.5 on the machines at hand
# Both from the same workloads: taking a batch in a running pipeline, over taking it from one worker
# that does nothing else; what an item takes more behind a wait if no core was at work meanwhile
TAKE_IN_RUN, CHILL = 1.3, 0.6
WAITS = 0.2  # an item whose waiting is this much of its CPU time is one that waits


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """What a run with some knobs changed would measure; its ranges are (low, high)."""

    changes: dict[str, Any]  # the knobs that were changed
    throughput: float | None = None  # samples/s
    throughput_range: tuple[float, float] | None = None
    utilization: float | None = None  # device-busy share of wall time, 0 to 1
    utilization_range: tuple[float, float] | None = None
    limit: str | None = None  # what then holds it back: "input", "cpu" (saturated) or "device"
    helps: bool = False  # whether it is faster than the measured run by more than the noise
    real_tokens_per_s: float | None = None  # of text, without padding; None for images
    why: str = ""  # what the prediction rests on, in a sentence
    cannot: str | None = None  # why nothing can be predicted, and what to do

    def table(self) -> Table:
        """Return the prediction in one line."""
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        if not (said := self.cannot):
            (low, high), (least, most) = self.throughput_range, self.utilization_range
            rate = f"{self.throughput:.0f} samples/s ({low:.0f} to {high:.0f})"
            if self.real_tokens_per_s:
                rate += f", {self.real_tokens_per_s:,.0f} real tokens/s"
            busy = f"busy {self.utilization:.0%} ({least:.0%} to {most:.0%})"
            said = f"predicted {rate}, {busy}, limit: {self.limit}; {self.why}"
        return Table((), title=f"Prediction({knobs}): {said}")


@of_one_moment
def predict(run: Any, **changes: Any) -> Prediction:
    """Predict throughput and utilization of `run` with some knobs changed.

    Raises ValueError for a name that is no knob, or a value that it does not take.
    """
    check_names(changes, KNOBS)
    changes = {name: KNOBS[name].check(value) for name, value in changes.items()}
    try:
        known = _known(run, run.steps, len(run.item_events), run.outcome)
        target = _target(known.pipeline, changes)
        step, notes = _step(run, target)
        if target.num_workers and not known.pipeline.num_workers and not known.handoff:
            raise CannotPredict("handing a batch over was not measured: run it with num_workers=1")
        rates, shares, cores, stretches = _simulated(known, target, step)
        if known.missed is None:  # what the model misses in the run itself; half of it stays
            itself = np.median(_simulated(known, run.pipeline, 1.0)[0])
            known.missed = np.sqrt(run.throughput / (itself * _documents(run, run.pipeline)))
        rates = rates * _documents(run, target) * known.missed
        shares = np.minimum(1.0, shares * known.missed)
    except CannotPredict as why:
        return Prediction(changes, cannot=f"cannot predict: {why}.", why=str(why))
    throughput, utilization = float(np.median(rates)), float(np.median(shares))
    limit, held = "input", "the loop still waits for data"
    if taken := np.median(cores) > CPU_BOUND:
        limit, held = "cpu", f"CPU-bound: all {known.cores} cores are saturated"
    if utilization > DEVICE_BOUND and not (taken and np.median(stretches) > STRETCHED):
        limit, held = "device", "the device is nearly always busy"
    error = float(np.hypot(2 * np.std(rates) / throughput, MODEL_ERROR[limit]))
    spread = float(np.hypot(2 * np.std(shares), UTILIZATION_ERROR[limit]))
    noise, ratio = max(WORTH, run.spread or 0.0), throughput / run.throughput
    gain = f"it will not help: {ratio - 1:+.0%} is within the noise of {noise:.0%};"
    if ratio > 1 + noise:
        gain = f"{ratio:.2f}x the measured throughput; then"
    elif ratio < 1 - noise:
        gain = f"it would be slower, {ratio:.2f}x the measured throughput;"
    rate_range = throughput / (1 + error), throughput * (1 + error)
    busy_range = max(0.0, utilization - spread), min(1.0, utilization + spread)
    ranges, tokens = (throughput, rate_range, utilization, busy_range), run.real_tokens_per_s
    said, tokens = "; ".join([f"{gain} {held}", *notes]), tokens and tokens * ratio
    return Prediction(changes, *ranges, limit, ratio > 1 + noise, tokens, said)


def _target(pipeline: Any, changes: dict[str, Any]) -> Any:
    # A delay of None would be this machine's choice: the run's own stands
    knobs = {k: v for k, v in changes.items() if v is not None or k not in ("io_ms", "prep_ms")}
    if knobs.get("num_workers", pipeline.num_workers) == 0:
        knobs = {"prefetch_factor": None, "persistent_workers": False} | knobs
    elif knobs.get("prefetch_factor", pipeline.prefetch_factor) is None:
        knobs["prefetch_factor"] = 2
    return pipeline.but(**knobs)


def _simulated(known: Measured, target: Any, step: float) -> np.ndarray:
    """Return (4, draws): throughput, utilization, busy share of the cores, steps' stretch."""
    prefetch = target.prefetch_factor or 0
    steps = min(target.steps, max(STEPS, 6 * target.stall_every if target.stall_ms else 0))
    warmup, found = max(3, target.num_workers * prefetch), []
    for draw in range(DRAWS):
        work = known.work(target, step, steps, np.random.default_rng(draw))
        came = Simulation(work, known.cores, target.num_workers, prefetch, target.seconds)
        found.append(came.summary(warmup, target.batch_size))
    return np.array(found).T


def _step(run: Any, target: Any) -> tuple[float, list[str]]:
    """Return the time of a step over that of the measured one, and what was taken into account."""
    old, seen, step, notes, unknown = run.pipeline, run.xray_facts or {}, 1.0, [], {}
    for name, value in target.to_dict().items():
        if value == getattr(old, name) or name in FREE:
            continue
        why = f"the effect of {name} was not measured: run it once with {name}={value!r}"
        if name == "batch_size":
            fixed = seen.get("fixed_share")
            if not old.batch_size / BATCH_FACTOR <= value <= old.batch_size * BATCH_FACTOR:
                raise CannotPredict(f"{why}, or one within {BATCH_FACTOR} times of it")
            if fixed is None:
                raise CannotPredict(f"{why}, or this run with xray=True and 3 seconds or more")
            notes.append(f"{fixed:.0%} of a step does not grow with the batch (x-ray)")
            step *= fixed + (1 - fixed) * value / old.batch_size
        elif name == "batching" and (ways := _batchings(run)):
            now, then = (_flops(way, ways[way], old) for way in (old.batching, value))
            fixed = seen.get("fixed_share") or 0.0
            step *= fixed + (1 - fixed) * then / now
            padding = 1 - ways[value]["real"] / ways[value]["tokens"]
            notes.append(f"by the sequences' lengths, {padding:.0%} of the tokens are padding")
        elif name == "precision":
            if value != "bf16" or old.precision != "fp32" or not seen.get("bf16_speedup"):
                raise CannotPredict(f"{why} (the x-ray of an fp32 run times bf16)")
            step /= seen["bf16_speedup"]
        elif name == "persistent_workers":
            notes.append("persistent_workers acts between epochs, and this run has one")
        elif name == "pin_memory" and run.machine.kind == "cpu":
            notes.append("pin_memory does nothing where the device is the CPU")
        else:
            unknown[name] = value
    if unknown:
        why = f"the effect of {' and '.join(unknown)} was not measured: run it once with "
        raise CannotPredict(why + ", ".join(f"{name}={value!r}" for name, value in unknown.items()))
    return step, notes


def _batchings(run: Any) -> dict[str, dict[str, float]]:
    """Return what an average batch holds by way of batching, as `Text.survey`; {} for images."""
    found = run._fact("text", "batchings", {})
    keys = ("documents", "tokens", "real", "squares")
    sound = all(way.get(key, 0) > 0 for way in found.values() for key in keys)
    return found if sound and set(found) == set(KNOBS["batching"].choices) else {}


def _documents(run: Any, target: Any) -> float:
    """Return how many samples of `target` are in a row of its batches: one, unless packed."""
    way = _batchings(run).get(target.batching)
    return way["documents"] / run.pipeline.batch_size if way else 1.0


def _flops(name: str, way: dict[str, float], pipeline: Any) -> float:
    """Return the forward FLOPs of an average batch: 24 w^2 a token and block, 4 w a pair of them.

    Those of matrix products, as in Kaplan et al., "Scaling laws for neural language models", 2020;
    packed, with what its mask takes.
    """
    width, depth, mask = pipeline.width, pipeline.depth, MASK_FLOPS * (name == "packed")
    of_token = 24 * width**2 * depth + 2 * 256 * width
    return of_token * way["tokens"] + (4 * width + mask) * depth * way["squares"]


# -- from a measured run to the work of another setting -------------------------------------------


class Measured:
    """What one run tells: s, per batch or step, warm-up left out."""

    def __init__(self, run: Any):
        self.costs, self.pipeline = _batches(run), run.pipeline
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
        company = 0.0  # threads of the run that computed, on average, while a loader process waited
        if workers:
            step = (stamps[-1, 5] - stamps[0, 0]) / len(stamps)
            worker = float(np.median(costs.cpu + costs.collate_cpu + costs.between)) / workers
            model = float(np.median(self.host)) if self.on_cpu else 0.0
            company = (model + (workers - 1) * worker) / step
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
        )


@functools.lru_cache(maxsize=1)  # a slider asks many changes of one run
def _known(run: Any, *_of_what_is_there_by_now: Any) -> Measured:
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
    t = np.array([step["t"] for step in run.steps_since(0)], dtype=float) / 1e9
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
