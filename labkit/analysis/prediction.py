"""What another setting would bring, predicted from one measured run, with a range.

    lk.predict(run, num_workers=4)

The data loader is simulated with what the run's own items cost; see `loader_simulation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_simulation import CannotPredict, Simulation
from labkit.analysis.loader_work import Measured
from labkit.knobs import check_names
from labkit.results.event_log import of_one_moment
from labkit.results.result import Result, Table
from labkit.spec import KNOBS

DRAWS = 5  # simulated runs, each from its own bootstrap sample of what was measured
STEPS = 240  # of a simulated run at the most
# What the model itself may be wrong by, and the machine between two runs, in the range beside the
# bootstrap's two standard errors. Set so that more than nine of ten settings of the development
# workloads are inside (26 settings on 6 workloads, twice, in tests/benchmarks/prediction.py).
MODEL_ERROR = {"input": 0.30, "device": 0.30, "cpu": 0.20}  # of the throughput
UTILIZATION_ERROR = {"input": 0.10, "device": 0.07, "cpu": 0.08}  # of wall time
WORTH = 0.05  # a gain below this is not called one, however quiet the run
DEVICE_BOUND, CPU_BOUND = 0.9, 0.9  # utilization; share of all core time
STRETCHED = 1.1  # a step that takes so much longer than alone is held back by who shares its cores

FREE = ("num_workers", "prefetch_factor", "stall_ms", "stall_every", "steps", "seconds", "seed",
        "xray")  # fmt: skip
BATCH_FACTOR = 4  # the step's time at other batch sizes is a straight line only so far
LITTLE_COPY = 0.02  # of a step: below this, faster copies cannot show


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """What a run with some knobs changed would measure.

    Attributes:
        changes: The knobs that were changed.
        throughput: Samples/s. `throughput_range` is (low, high).
        utilization: Device-busy share of wall time, 0 to 1. `utilization_range` is (low, high).
        limit: What then holds it back: "input", "cpu" (its cores are saturated) or "device".
        helps: Whether it is faster than the run it is predicted from by more than the noise.
        why: What the prediction rests on, in a sentence.
        cannot: Why nothing can be predicted, and what to do; None where it can.
    """

    changes: dict[str, Any]
    throughput: float | None = None
    throughput_range: tuple[float, float] | None = None
    utilization: float | None = None
    utilization_range: tuple[float, float] | None = None
    limit: str | None = None
    helps: bool = False
    why: str = ""
    cannot: str | None = None

    def table(self) -> Table:
        """Return the prediction in one line."""
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        if not (said := self.cannot):
            (low, high), (least, most) = self.throughput_range, self.utilization_range
            said = (
                f"predicted {self.throughput:.0f} samples/s ({low:.0f} to {high:.0f}), busy "
                f"{self.utilization:.0%} ({least:.0%} to {most:.0%}), limit: {self.limit}; "
                f"{self.why}"
            )
        return Table((), title=f"Prediction({knobs}): {said}")


@of_one_moment
def predict(run: Any, **changes: Any) -> Prediction:
    """Predict throughput and utilization of `run` with some knobs changed.

    Raises ValueError for a name that is no knob, or a value that it does not take.
    """
    check_names(changes, KNOBS)
    changes = {name: KNOBS[name].check(value) for name, value in changes.items()}
    try:
        known = Measured(run)
        target = _target(known.pipeline, changes)
        step, notes = _step(run, target)
        if target.num_workers and not known.pipeline.num_workers and not known.handoff:
            raise CannotPredict(
                "what it costs to hand a batch over from a worker was not measured: run it again "
                "with 8 steps or more, or with num_workers=1"
            )
        rates, shares, cores, stretches = _simulated(known, target, step)
    except CannotPredict as why:
        return Prediction(changes, cannot=f"cannot predict: {why}.", why=str(why))
    throughput, utilization = float(np.median(rates)), float(np.median(shares))
    taken = np.median(cores) > CPU_BOUND
    limit = "cpu" if taken else "input"
    if utilization > DEVICE_BOUND and not (taken and np.median(stretches) > STRETCHED):
        limit = "device"
    held = {
        "input": "the loop still waits for data",
        "cpu": f"CPU-bound: all {known.cores} cores are saturated",
        "device": "the device is nearly always busy",
    }[limit]
    error = float(np.hypot(2 * np.std(rates) / throughput, MODEL_ERROR[limit]))
    spread = float(np.hypot(2 * np.std(shares), UTILIZATION_ERROR[limit]))
    noise, ratio = max(WORTH, run.spread or 0.0), throughput / run.throughput
    if ratio > 1 + noise:
        gain = f"{ratio:.2f}x the measured throughput; then"
    elif ratio < 1 - noise:
        gain = f"it would be slower, {ratio:.2f}x the measured throughput;"
    else:
        gain = f"it will not help: {ratio - 1:+.0%} is within the noise of {noise:.0%};"
    return Prediction(
        changes,
        throughput,
        (throughput / (1 + error), throughput * (1 + error)),
        utilization,
        (max(0.0, utilization - spread), min(1.0, utilization + spread)),
        limit,
        helps=throughput > run.throughput * (1 + noise),
        why="; ".join([f"{gain} {held}", *notes]),
    )


def _target(pipeline: Any, changes: dict[str, Any]) -> Any:
    unchanged = ("io_ms", "prep_ms")  # None would be this machine's choice: the run's own
    knobs = {k: v for k, v in changes.items() if v is not None or k not in unchanged}
    if knobs.get("num_workers", pipeline.num_workers) == 0:
        knobs = {"prefetch_factor": None, "persistent_workers": False} | knobs
    elif knobs.get("prefetch_factor", pipeline.prefetch_factor) is None:
        knobs["prefetch_factor"] = 2
    return pipeline.but(**knobs)


def _simulated(known: Measured, target: Any, step: float) -> np.ndarray:
    """Return (4, draws): throughput, utilization, busy share of the cores, steps' stretch."""
    prefetch = target.prefetch_factor or 0
    steps = min(target.steps, max(STEPS, 6 * target.stall_every if target.stall_ms else 0))
    warmup = max(3, target.num_workers * prefetch)
    found = []
    for draw in range(DRAWS):
        work = known.work(target, step, steps, np.random.default_rng(draw))
        came = Simulation(work, known.cores, target.num_workers, prefetch, target.seconds)
        found.append(came.summary(warmup, target.batch_size))
    return np.array(found).T


def _step(run: Any, target: Any) -> tuple[float, list[str]]:
    """Return the time of a step over that of the measured one, and what was taken into account.

    Raises CannotPredict where the run cannot tell.
    """
    old, seen, step, notes = run.pipeline, run.xray_facts or {}, 1.0, []
    for name, value in target.to_dict().items():
        if value == getattr(old, name) or name in FREE:
            continue
        if name in ("io_ms", "prep_ms"):
            if getattr(old, name) is None:
                raise CannotPredict(f"the run states no {name}: its waits are its own")
        elif name == "batch_size":
            fixed = _fixed_share(seen, old.batch_size, value)
            notes.append(f"{fixed:.0%} of a step does not grow with the batch (x-ray)")
            step *= fixed + (1 - fixed) * value / old.batch_size
        elif name == "precision":
            if value != "bf16" or old.precision != "fp32" or not seen.get("bf16_speedup"):
                raise CannotPredict(
                    f"a step in {value} was not timed: run it once with precision={value!r} (an "
                    "x-ray of an fp32 run times bf16)"
                )
            step /= seen["bf16_speedup"]
        elif name == "persistent_workers":
            notes.append("persistent_workers acts between epochs, and this run has one")
        elif name == "pin_memory" and run.machine.kind == "cpu":
            notes.append("pin_memory does nothing where the device is the CPU")
        elif name == "pin_memory":
            if run.copy_ms is None or run.copy_ms >= LITTLE_COPY * run.step_ms:
                raise CannotPredict(
                    "copies from the other kind of memory were not timed: run it once"
                )
            share = run.copy_ms / run.step_ms
            notes.append(f"copies take {share:.1%} of a step: pinning cannot show")
        else:
            raise CannotPredict(
                f"the effect of {name} was not measured: run it once with {name}={value!r}"
            )
    return step, notes


def _fixed_share(seen: dict[str, Any], old: int, new: int) -> float:
    """Return the share of a step's time that does not grow with the batch."""
    if not old / BATCH_FACTOR <= new <= old * BATCH_FACTOR:
        raise CannotPredict(
            f"batch_size={new} is more than {BATCH_FACTOR} times away from the measured {old}: "
            f"run it once with a batch size from {-(-new // BATCH_FACTOR)} to {new * BATCH_FACTOR}"
        )
    if seen.get("fixed_share") is None:
        raise CannotPredict(
            "no x-ray tells how a step's time grows with the batch: run it again with xray=True "
            "and 3 seconds or more"
        )
    return seen["fixed_share"]
