"""What another setting would bring, predicted from one measured run, with a range.

    lk.predict(run, num_workers=4)

The data loader is simulated with what the run's own items cost; see `loader_simulation`.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labkit.analysis.loader_changes import CannotPredict, Change, change_of
from labkit.analysis.loader_simulation import simulate
from labkit.analysis.loader_work import Measured, measured, work_of
from labkit.knobs import check_names
from labkit.results.event_log import of_one_moment
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


@dataclass(frozen=True)
class Prediction:
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

    def to_dict(self) -> dict[str, Any]:
        """The prediction as JSON types."""
        return asdict(self)

    def __repr__(self) -> str:
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        if self.cannot:
            return f"Prediction({knobs}): {self.cannot}"
        (low, high), (least, most) = self.throughput_range, self.utilization_range
        return (
            f"Prediction({knobs}): predicted {self.throughput:.0f} samples/s ({low:.0f} to "
            f"{high:.0f}), busy {self.utilization:.0%} ({least:.0%} to {most:.0%}), limit: "
            f"{self.limit}; {self.why}"
        )


@of_one_moment
def predict(run: Any, **changes: Any) -> Prediction:
    """Predict throughput and utilization of `run` with some knobs changed.

    Raises ValueError for a name that is no knob, or a value that it does not take.
    """
    check_names(changes, KNOBS)
    changes = {name: KNOBS[name].check(value) for name, value in changes.items()}
    try:
        known = _known(run, run.steps, len(run.item_events))
        target = _target(known, changes)
        change = change_of(run, target)
        if target.num_workers and not known.pipeline.num_workers and not known.handoff:
            raise CannotPredict(
                "what it costs to hand a batch over from a worker was not measured: run it again "
                "with 8 steps or more, or with num_workers=1"
            )
        return _predicted(run, known, target, change, changes)
    except CannotPredict as why:
        return Prediction(changes, cannot=f"cannot predict: {why}.", why=str(why))


@functools.lru_cache(maxsize=32)
def _known(run: Any, steps: int, events: int) -> Measured:
    return measured(run)


def _target(known: Measured, changes: dict[str, Any]) -> Any:
    unchanged = ("io_ms", "prep_ms")  # None would be this machine's choice: the run's own
    knobs = {k: v for k, v in changes.items() if v is not None or k not in unchanged}
    workers = knobs.get("num_workers", known.pipeline.num_workers)
    if workers == 0:
        knobs.setdefault("prefetch_factor", None)
        knobs.setdefault("persistent_workers", False)
    elif knobs.get("prefetch_factor", known.pipeline.prefetch_factor) is None:
        knobs["prefetch_factor"] = 2
    return known.pipeline.but(**knobs)


def _predicted(
    run: Any, known: Measured, target: Any, change: Change, changes: dict[str, Any]
) -> Prediction:
    rates, shares, cores, stretches = _simulated(known, target, change)
    throughput, utilization = float(np.median(rates)), float(np.median(shares))
    limit = _limit(utilization, float(np.median(cores)), float(np.median(stretches)))
    error = float(np.hypot(2 * np.std(rates) / throughput, MODEL_ERROR[limit]))
    spread = float(np.hypot(2 * np.std(shares), UTILIZATION_ERROR[limit]))
    noise = max(WORTH, run.spread or 0.0)
    helps = throughput > run.throughput * (1 + noise)
    return Prediction(
        changes,
        throughput,
        (throughput / (1 + error), throughput * (1 + error)),
        utilization,
        (max(0.0, utilization - spread), min(1.0, utilization + spread)),
        limit,
        helps,
        _why(run, throughput, noise, limit, known.machine.cores, change.notes),
    )


def _simulated(known: Measured, target: Any, change: Change) -> tuple[list[float], ...]:
    """Return every draw's throughput, utilization, busy share of the cores, steps' stretch."""
    prefetch = target.prefetch_factor or 0
    steps = min(target.steps, max(STEPS, 6 * target.stall_every if target.stall_ms else 0))
    found = []
    for draw in range(DRAWS):
        work = work_of(known, target, change, steps, np.random.default_rng(draw))
        outcome = simulate(
            work, known.machine, workers=target.num_workers, prefetch=prefetch,
            seconds=target.seconds,
        )  # fmt: skip
        warmup = max(3, target.num_workers * prefetch)
        numbers = outcome.summary(warmup, target.batch_size)
        found.append((*numbers, outcome.cores_busy, outcome.stretch))
    return tuple(map(list, zip(*found, strict=True)))


def _limit(utilization: float, cores_busy: float, stretch: float) -> str:
    taken = cores_busy > CPU_BOUND
    if utilization > DEVICE_BOUND and not (taken and stretch > STRETCHED):
        return "device"
    return "cpu" if taken else "input"


def _why(
    run: Any, throughput: float, noise: float, limit: str, cores: int, notes: tuple[str, ...]
) -> str:
    """Say in one sentence what comes of it, and why it is not more."""
    ratio = throughput / run.throughput
    held = {
        "input": "the loop still waits for its data",
        "cpu": f"the {cores} cores are taken: who computes shares them",
        "device": "the device is nearly always busy",
    }[limit]
    if ratio > 1 + noise:
        head = f"{ratio:.2f} times the measured throughput; then {held}"
    elif ratio < 1 - noise:
        head = f"it would be slower, {ratio:.2f} times the measured throughput; {held}"
    else:
        head = f"it will not help: {ratio - 1:+.0%} is within the noise of {noise:.0%}; {held}"
    return "; ".join([head, *notes])
