"""`lk.predict(run, num_workers=4)`: what another setting would bring, from one measured run.

The loader is simulated (`loader_simulation`) with what the run's own items and steps cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_simulation import CannotPredict, Simulation
from labkit.analysis.run_costs import Measured, known_of
from labkit.knobs import check_names
from labkit.results.event_log import of_one_moment
from labkit.results.result import Result, Table
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
        known = known_of(run, run.steps, len(run.item_events), run.outcome)
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
