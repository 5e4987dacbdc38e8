"""`lk.predict(run, num_workers=4)`: what another setting would bring, from one measured run.

The loader is simulated (`loader_simulation`) with what the run's own items and steps cost.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from labkit.knobs import Setting, as_typed, check_names
from labkit.prediction.loader_simulation import CannotPredict, Simulation
from labkit.prediction.run_costs import RunCosts
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.spec import KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS, Pipeline

DRAWS = 5  # simulated runs, each from its own bootstrap sample of what was measured
STEPS = 240  # of a simulated run at the most
# What the model may be wrong by, in the range beside the bootstrap's two standard errors: set so
# that over nine of ten settings are inside (26 on 6 workloads, maintain/benchmarks/prediction.py)
MODEL_ERROR = {"input": 0.30, "device": 0.30, "cpu": 0.20}  # of the throughput
UTILIZATION_ERROR = {"input": 0.10, "device": 0.07, "cpu": 0.08}  # of wall time
WORTH = 0.05  # a gain below this is not called one, however quiet the run
DEVICE_BOUND = 0.9  # utilization
CPU_BOUND = 0.9  # share of all core time
STRETCHED = 1.1  # times as long as alone: such a step is held back by who shares its cores

BATCH_FACTOR = 4  # the step's time at other batch sizes is a straight line only so far
XRAY_TELLS = (
    ", or this run with xray=True and 3 seconds or more, which tells of batch sizes within "
    f"{BATCH_FACTOR} times of its own, and what BF16 brings over FP32"
)


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """What a run with some knobs changed would measure; its ranges are (low, high)."""

    changes: dict[str, Setting]  # the knobs that were changed
    throughput: float | None = None  # samples/s
    throughput_range: tuple[float, float] | None = None
    utilization: float | None = None  # device-busy share of wall time, 0 to 1
    utilization_range: tuple[float, float] | None = None
    limit: str | None = None  # what then holds it back: "input", "cpu" (saturated) or "device"
    why: str = ""  # what the prediction rests on, in a sentence
    cannot: str | None = None  # why nothing can be predicted, and what to do

    def table(self) -> Table:
        """Return the prediction in one line."""
        said = self.cannot
        if self.throughput_range and self.utilization_range:
            low, high = self.throughput_range
            least, most = self.utilization_range
            rate = f"{self.throughput:.0f} samples/s ({low:.0f} to {high:.0f})"
            busy = f"busy {self.utilization:.0%} ({least:.0%} to {most:.0%})"
            said = f"predicted {rate}, {busy}, limit: {self.limit}; {self.why}"
        return Table((), title=f"Prediction({as_typed(self.changes)}): {said}")


class Simulations:
    """The simulated runs of other settings of one run."""

    def __init__(self, run: RunData):
        """Read a run; raises CannotPredict where it tells too little."""
        self.known = known = RunCosts(run)
        self.of_setting = functools.cache(self._simulated)  # a slider asks many changes of one run
        simulated = np.median(self.of_setting(known.pipeline, 1.0)[0])
        # What the model misses in the run itself, of which half stays: its root
        self.missed = float(np.sqrt(known.throughput / simulated))

    def _simulated(self, target: Pipeline, step: float) -> np.ndarray:
        """Return the `Summary` of each simulated run (4, DRAWS).

        A step takes `step` times what it took in the measured run.
        """
        known = self.known
        stalls = 6 * target.stall_every if target.stall_ms else 0
        prefetch = (target.prefetch_factor or PYTORCH_PREFETCH) if target.num_workers else 0
        steps = min(target.steps or STEPS, max(STEPS, stalls))
        warmup = max(3, target.num_workers * prefetch)
        found = []
        for draw in range(DRAWS):
            work = known.work(target, step, steps, np.random.default_rng(draw))
            loop = Simulation(work, known.cores, target.num_workers, prefetch, target.seconds)
            found.append(loop.run().summary(warmup, target.batch_size))
        return np.array(found).T


@functools.lru_cache(maxsize=4)
def _simulations(run: RunData) -> Simulations:
    return Simulations(run)


def predict(run: RunData, **changes: Setting) -> Prediction:
    """Predict throughput and utilization of `run` with some knobs changed.

    Raises ValueError for a name that is no knob, or a value that it does not take.
    """
    check_names(changes, KNOBS)
    return predict_from(run.data, {name: KNOBS[name].check(changes[name]) for name in changes})


def predict_from(run: RunData, changes: dict[str, Setting]) -> Prediction:
    """Return a prediction; a watched loop's own settings may be beyond what a knob takes."""
    try:
        simulations = _simulations(run)
        known = simulations.known
        target = _target(known.pipeline, changes)
        step, notes = _step(run, known.pipeline, target)
        if target.num_workers and not known.pipeline.num_workers and not known.handoff:
            raise CannotPredict(
                "sending a batch from a worker was not measured: run it with num_workers=1"
            )
        rates, shares, cores, stretches = simulations.of_setting(target, step)
    except CannotPredict as why:
        return Prediction(changes, cannot=f"cannot predict: {why}.", why=str(why))
    rates = rates * simulations.missed
    shares = np.minimum(1.0, shares * simulations.missed)
    throughput = float(np.median(rates))
    utilization = float(np.median(shares))
    saturated = np.median(cores) > CPU_BOUND
    stretched = saturated and np.median(stretches) > STRETCHED
    if utilization > DEVICE_BOUND and not stretched:
        limit, held = "device", "the device is nearly always busy"
    elif saturated:
        limit, held = "cpu", f"CPU-bound: all {known.cores} cores are saturated"
    else:
        limit, held = "input", "the loop still waits for data"
    error = float(np.hypot(2 * np.std(rates) / throughput, MODEL_ERROR[limit]))
    spread = float(np.hypot(2 * np.std(shares), UTILIZATION_ERROR[limit]))
    noise = max(WORTH, run.spread or 0.0)
    return Prediction(
        changes,
        throughput=throughput,
        throughput_range=(throughput / (1 + error), throughput * (1 + error)),
        utilization=utilization,
        utilization_range=(max(0.0, utilization - spread), min(1.0, utilization + spread)),
        limit=limit,
        why="; ".join([f"{_gain_said(throughput / known.throughput, noise)} {held}", *notes]),
    )


def _gain_said(ratio: float, noise: float) -> str:
    """Say how much faster a run will be, to go on with what will hold it back."""
    if abs(ratio - 1) <= noise:
        return f"it will not help: {ratio - 1:+.0%} is within the noise of {noise:.0%};"
    return f"{ratio:.2f}x the measured throughput; then"


def _target(pipeline: Pipeline, changes: dict[str, Setting]) -> Pipeline:
    """Return the pipeline with the changes, and with what goes with its number of workers."""
    # A delay of None would be this machine's choice: the run's own stands
    knobs = dict(changes)
    for name in ("io_ms", "prep_ms"):
        if name in knobs and knobs[name] is None:
            del knobs[name]
    if knobs.get("num_workers", pipeline.num_workers) == 0:
        knobs = WITHOUT_WORKERS | knobs
    elif knobs.get("prefetch_factor", pipeline.prefetch_factor) is None:
        knobs["prefetch_factor"] = PYTORCH_PREFETCH
    return pipeline.but(**knobs)


def _step(run: RunData, old: Pipeline, target: Pipeline) -> tuple[float, list[str]]:
    """Return the time of a step over that of the measured one, and what was taken into account.

    What batch size and BF16 do to a step is known of the x-ray alone.
    """
    xray = run.xray_facts or {}
    fixed = xray.get("fixed_share")
    bf16_speedup = xray.get("bf16_speedup") if old.precision in ("fp32", "ieee") else None
    factor = 1.0
    notes = []
    unknown = {}
    for name, value in target.to_dict().items():
        if value == getattr(old, name) or "outside step" in KNOBS[name].traits:
            continue
        growth = target.batch_size / old.batch_size
        is_near = 1 / BATCH_FACTOR <= growth <= BATCH_FACTOR
        if name == "batch_size" and fixed is not None and is_near:
            factor *= fixed + (1 - fixed) * growth
            notes.append(f"{fixed:.0%} of a step does not grow with the batch (x-ray)")
        elif name == "precision" and value == "bf16" and bf16_speedup:
            factor /= bf16_speedup
        elif name == "persistent_workers":
            notes.append("persistent_workers acts between epochs, and this run has one")
        elif name == "pin_memory" and run.machine.kind == "cpu":
            notes.append("pin_memory does nothing where the device is the CPU")
        else:
            unknown[name] = value
    if unknown:
        names = " and ".join(unknown)
        more = XRAY_TELLS if unknown.keys() & {"batch_size", "precision"} else ""
        raise CannotPredict(
            f"the effect of {names} was not measured: run it once with {as_typed(unknown)}{more}"
        )
    return factor, notes
