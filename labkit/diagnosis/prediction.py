"""`lk.predict(run, num_workers=4)`: what another setting would bring, from one measured run.

The loader is simulated (`loader_simulation`) with what the run's own items and steps cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.diagnosis.loader_simulation import CannotPredict, Simulation, Work
from labkit.diagnosis.run_costs import Measured, cores_used, known_of
from labkit.diagnosis.thresholds import FOREIGN_LOAD, HANDOFF_US
from labkit.knobs import check_names
from labkit.results.event_log import of_one_moment
from labkit.results.result import Result, Table, listed
from labkit.spec import KNOBS

DRAWS = 5  # simulated runs, each from its own bootstrap sample of what was measured
RANKING_DRAWS = 1  # of them, to find the settings that may be best: those are drawn in full
MAY_BE_BEST = 0.06  # so far below the best of that ranking
STEPS = 240  # of a simulated run at the most
# What the model may be wrong by, in the range beside the bootstrap's two standard errors: set so
# that over nine of ten settings are inside (26 on 6 workloads, maintain/benchmarks/prediction.py)
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


# Numbers of workers among which one is recommended; those above the cores help items that wait
WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (2, 4, 8, 16)  # batches that a worker prepares ahead, to choose from
LEAST_MAX_WORKERS = 12  # considered even on few cores, for items that wait
HANDOFF_S = HANDOFF_US / 1e6  # of a batch from a worker, where it was not measured
GAINS, LEVEL = 0.01, 3  # so many numbers in a row that gain no more than that: none above does
TIE = 0.03  # a throughput this close to the best is as good: then fewer workers are
NOT_COMPARABLE = "not comparable"  # what came with what was predicted


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
    return _predict(run, changes, DRAWS)


def _predict(run: Any, changes: dict[str, Any], draws: int) -> Prediction:
    check_names(changes, KNOBS)
    changes = {name: KNOBS[name].check(value) for name, value in changes.items()}
    try:
        known = known_of(run, run.steps, len(run.item_events), run.outcome)
        target = _target(known.pipeline, changes)
        step, notes = _step(run, target)
        if target.num_workers and not known.pipeline.num_workers and not known.handoff:
            raise CannotPredict("handing a batch over was not measured: run it with num_workers=1")
        rates, shares, cores, stretches = _simulated(known, target, step, draws)
        if known.missed is None:  # what the model misses in the run itself; half of it stays
            itself = np.median(_simulated(known, run.pipeline, 1.0, DRAWS)[0])
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
    tokens = run.real_tokens_per_s
    return Prediction(
        changes,
        throughput=throughput,
        throughput_range=(throughput / (1 + error), throughput * (1 + error)),
        utilization=utilization,
        utilization_range=(max(0.0, utilization - spread), min(1.0, utilization + spread)),
        limit=limit,
        helps=ratio > 1 + noise,
        real_tokens_per_s=tokens and tokens * ratio,
        why="; ".join([f"{gain} {held}", *notes]),
    )


@dataclass(frozen=True)
class Workers:
    """A recommended number of loader workers, and what the simulation expects of it."""

    num_workers: int
    gain: float  # the throughput with them over the run's own; 1.0 where the run has them
    gain_range: tuple[float, float]  # low, high
    limit: str | None = None  # what then holds the run back, as in a `Prediction`


@of_one_moment
def recommend_workers(run: Any, lines: Any = None) -> Workers | None:
    """Return how many loader workers `run` should have, or None where nothing can be predicted.

    This is the one rule for that number: the fewest workers whose simulated throughput comes within
    `TIE` of the best one. The run's own number stays unless another one gains more than `WORTH`.
    The machine's cores are part of the simulation, so items that compute get no more workers than
    there are cores; items that wait may get up to the larger of `LEAST_MAX_WORKERS` and twice the
    cores.

    Args:
        run: A Run with two measured steps or more; a watched loop needs a torch DataLoader.
        lines: The run's `lines`, where they are known already; they tell of a watched loop which
            part of the loading waits. Without them the range reaches from all of it to none.
    """
    own = run.pipeline.num_workers

    def rate(count: int, draws: int = RANKING_DRAWS) -> float:
        return _predict(run, {"num_workers": count}, draws).throughput or 0.0

    if own is None or not rate(own, DRAWS):
        return _of_times(run, lines)
    roughly = _rates(own, run.machine.cpu_cores, rate)
    least = (1 - MAY_BE_BEST) * max(roughly.values())
    near = [count for count, value in roughly.items() if value >= least]
    chosen = _fewest(own, {count: rate(count, DRAWS) for count in (own, *near)})
    found = predict(run, num_workers=chosen)
    if chosen == own:
        return Workers(own, 1.0, (1.0, 1.0), found.limit)
    low, high = (rate / run.throughput for rate in found.throughput_range)
    return Workers(chosen, found.throughput / run.throughput, (low, high), found.limit)


def workers_from_times(
    make_s: Any,
    step_s: Any,
    cores: float | None,
    *,
    own: int = 0,
    computes: float | None = None,
    threads: int = 1,
) -> Workers:
    """Return the recommended number of workers from times alone, as `recommend_workers` does.

    What an item takes of a core and what handing a batch over takes was not measured, so another
    number than the run's own has to gain more than the model may be wrong by.

    Args:
        make_s: Time to make a batch in one process, s: a number, or one for each of some batches.
        step_s: Time of the loop's body for a batch, s, likewise.
        cores: Cores that the loop and its workers can have; None where that is not known.
        own: The workers that there are now.
        computes: Share (0 to 1) of `make_s` that takes a core, the rest waits. None: not known. The
            number is then the one for items that compute, and the range covers both.
        threads: Cores that the body takes.
    """
    most = cores or max(WORKERS)
    error = MODEL_ERROR["input"]
    draws = np.random.default_rng(0)
    made = draws.choice(np.atleast_1d(make_s), (STEPS, 1))
    body = draws.choice(np.atleast_1d(step_s), STEPS)

    def rates(share: float) -> dict[int, float]:
        work = Work(
            waits=made * (1 - share),
            cpus=made * share,
            host=body,
            put=HANDOFF_S / 2,
            take=HANDOFF_S / 2,
            host_threads=threads,
        )

        def rate(count: int) -> float:
            return Simulation(work, most, count, 2).summary(max(3, 2 * count), 1)[0]

        return _rates(own, cores, rate)

    known = rates(1.0 if computes is None else computes)
    chosen = _fewest(own, known, error)
    gain = known[chosen] / known[own]
    if chosen == own:
        return Workers(own, 1.0, (1.0, 1.0))
    others = [known, rates(0.0)] if computes is None else [known]
    gains = [each[chosen] / each[own] for each in others if chosen in each]
    return Workers(chosen, gain, (min(gains) / (1 + error), max(gains) * (1 + error)))


def _of_times(run: Any, lines: Any) -> Workers | None:
    """Return what stamps and sampled stacks say of the workers, where no item was timed."""
    own = run.pipeline.num_workers
    stamps = run.stamps[run.warmup :]
    if own is None or len(stamps) < 2:
        return None
    cores = run.machine.cpu_cores
    others = cores_used(run)[1] or 0.0
    if cores and others > FOREIGN_LOAD * cores:  # what other programs take, no worker has
        cores = max(1.0, cores - others)
    wait_s = stamps[:, 1] - stamps[:, 0]
    body_s = stamps[:, 5] - stamps[:, 1]
    made_s = wait_s
    if own:  # workers that never rest make a batch in a step's time each
        mean_s = float(np.mean(wait_s + body_s))
        made_s = lines.made_us / 1e6 if lines and lines.made_us else own * mean_s
    if np.mean(made_s) <= 0 or np.mean(body_s) <= 0:
        return None
    phase = "worker" if own else "waiting"
    computes = None
    if lines is not None and lines.enough(phase):
        kinds = lines.kinds(phase)
        rests = kinds.get("io", 0.0) + kinds.get("wait", 0.0)
        computes = 1 - rests / max(sum(kinds.values()), 1e-9)
    threads = getattr(run.machine, "threads", None) if run.machine.kind == "cpu" else None
    threads = max(1, int(min(threads or 1, cores or 1)))
    return workers_from_times(made_s, body_s, cores, own=own, computes=computes, threads=threads)


def _rates(own: int, cores: float | None, rate: Callable[[int], float]) -> dict[int, float]:
    """Return the rates with several numbers of workers, as many as still gain, and with `own`."""
    most = max(LEAST_MAX_WORKERS, 2 * (cores or 1))
    found = {own: rate(own)}
    best = found[own]
    gained_nothing = 0
    for count in WORKERS:
        if count > most or gained_nothing == LEVEL:
            break
        if count not in found:
            found[count] = rate(count)
        if found[count] > (1 + GAINS) * best:
            best = found[count]
            gained_nothing = 0
        elif count > own:
            gained_nothing += 1
    return found


def _fewest(own: int | None, rates: dict[int, float], worth: float = WORTH) -> int:
    """Return the fewest workers that are as good as the best; `own` where that gains too little."""
    own = own or 0
    best = max(rates.values())
    if best <= (1 + worth) * rates[own]:
        return own
    return min(count for count, rate in rates.items() if rate >= (1 - TIE) * best)


@of_one_moment
def recommend_prefetch(run: Any) -> tuple[int, Prediction] | None:
    """Return the smallest prefetch_factor that is as good as the best, and what it would bring.

    None where none gains more than `WORTH`, or where nothing can be predicted.
    """
    now = run.pipeline.prefetch_factor or 2
    found = {}
    for factor in PREFETCH:
        if factor > now:
            found[factor] = _predict(run, {"prefetch_factor": factor}, RANKING_DRAWS)
    found = {factor: each for factor, each in found.items() if each.throughput and each.helps}
    if not found:
        return None
    best = max(each.throughput for each in found.values())
    factor = min(f for f, each in found.items() if each.throughput >= (1 - TIE) * best)
    return factor, predict(run, prefetch_factor=factor)


def outcome_of(found: Prediction, came: Any) -> str:
    """Say how a run came out against what was predicted of it, and which part was missed.

    Where other programs took the cores, the two are not comparable, and that is said instead.
    """
    cores = came.machine.cpu_cores or 1
    others = cores_used(came)[1] or 0.0
    if others > FOREIGN_LOAD * cores:
        named = f": {listed(came.beside)}" if came.beside else ""
        return f"{NOT_COMPARABLE}: other programs use {others:.1f} of {cores} cores{named}"
    apart = came.throughput / found.throughput - 1
    if abs(apart) < WORTH:
        return "as predicted"
    said = f"{abs(apart):.0%} {'lower' if apart < 0 else 'higher'} than predicted"
    # s a sample in which the device is busy, and in which it is not
    told, seen = (
        (each.utilization / each.throughput, (1 - each.utilization) / each.throughput)
        for each in (found, came)
    )
    busy, idle = seen[0] - told[0], seen[1] - told[1]
    part, more = ("step", busy) if abs(busy) > abs(idle) else ("wait", idle)
    return f"{said}: the {part} is {'longer' if more > 0 else 'shorter'}"


def _target(pipeline: Any, changes: dict[str, Any]) -> Any:
    # A delay of None would be this machine's choice: the run's own stands
    knobs = {k: v for k, v in changes.items() if v is not None or k not in ("io_ms", "prep_ms")}
    if knobs.get("num_workers", pipeline.num_workers) == 0:
        knobs = {"prefetch_factor": None, "persistent_workers": False} | knobs
    elif knobs.get("prefetch_factor", pipeline.prefetch_factor) is None:
        knobs["prefetch_factor"] = 2
    return pipeline.but(**knobs)


def _simulated(known: Measured, target: Any, step: float, draws: int) -> np.ndarray:
    """Return (4, draws): throughput, utilization, busy share of the cores, steps' stretch."""
    prefetch = (target.prefetch_factor or 2) if target.num_workers else 0
    steps = min(target.steps, max(STEPS, 6 * target.stall_every if target.stall_ms else 0))
    warmup = max(3, target.num_workers * prefetch)
    found = known.simulated.setdefault((target, step), [])
    for draw in range(len(found), draws):
        work = known.work(target, step, steps, np.random.default_rng(draw))
        came = Simulation(work, known.cores, target.num_workers, prefetch, target.seconds)
        found.append(came.summary(warmup, target.batch_size))
    return np.array(found[:draws]).T


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
