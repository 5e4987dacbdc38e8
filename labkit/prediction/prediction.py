"""`lk.predict(run, num_workers=4)`: what another setting would bring, from one measured run.

`RunCosts` is what the run's own items and steps cost; with that the loader of another setting is
simulated (`loader_simulation`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.instruments.loader_knobs import in_flight, warmup_steps
from labkit.instruments.loader_work import ItemTimes
from labkit.knobs import Setting, as_typed, check_names
from labkit.prediction.loader_simulation import (
    NEVER,
    RUN_AHEAD,
    CannotPredict,
    Load,
    Simulation,
)
from labkit.results.result import Result, Table
from labkit.results.run_data import RunData
from labkit.spec import KNOBS, PYTORCH_PREFETCH, WITHOUT_WORKERS, Pipeline
from labkit.stamps.event_shapes import fits
from labkit.stamps.steps import COPIED, DONE

if TYPE_CHECKING:
    import pandas

# The system's account of the time in line falls short: in runs on two cores whose items do not wait
# at all, this much of it came on top as "waiting" (0.62 to 0.69 in 12 runs, Linux 6.18).
LINE_MISSED = 0.65
STRETCHES = 4  # of waiting and computing that a batch of single samples is prepared in
FEW_CALM = 5  # steps of a host that no full queue held up
MIN_BATCHES = 4  # measured, to predict from
TAKE_IN_RUN = 1.3  # taking a batch in a running pipeline, over taking it from one idle worker
DRAWS = 5  # simulated runs, each from its own bootstrap sample of what was measured
STEPS = 240  # of a simulated run at the most
# What the model may be wrong by, in the range beside the bootstrap's two standard errors: set so
# that over nine of ten settings are inside. How many are: maintain/benchmarks/prediction.py.
# {limit: error of the throughput, of the busy share of wall time, the limit in words}
LIMITS = {
    "input": (0.30, 0.10, "the loop still waits for data"),
    "device": (0.30, 0.07, "the device is nearly always busy"),
    "cpu": (0.20, 0.08, "CPU-bound: all cores are saturated"),
}
WORTH = 0.05  # a gain below this is not called one, however quiet the run
DEVICE_BOUND = 0.9  # utilization
CPU_BOUND = 0.9  # share of all core time

# Numbers of workers among which one is recommended; those above the cores help items that wait
WORKER_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (2, 4, 8, 16)  # batches that a worker prepares ahead, to choose from
LEAST_MAX_WORKERS = 12  # considered even on few cores, for items that wait
AS_GOOD = 0.03  # a throughput this close to the best is as good: then fewer workers are
BATCH_FACTOR = 4  # the step's time at other batch sizes is a straight line only so far
XRAY_TELLS = (
    ", or this run with xray=True and 3 seconds or more, which tells of batch sizes within "
    f"{BATCH_FACTOR} times of its own, and what BF16 brings over FP32"
)


class RunCosts:
    """What one run tells of its costs: s, per batch or step, warm-up left out."""

    def __init__(self, run: RunData):
        """Read a run.

        Raises CannotPredict where it tells too little.
        """
        if run.watched:
            raise CannotPredict(
                "a watched loader does not show what items cost: tune(...) measures it"
            )
        if not run.throughput or run.steps - run.warmup < 2:
            raise CannotPredict("the run has too few steps: give it more")
        self.run = run
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

    def simulate(self, target: Pipeline, step: float) -> np.ndarray:
        """Return the `Summary` of each simulated run of `target` (3, DRAWS).

        A step takes `step` times what it took in the measured run.
        """
        stalls = 6 * target.stall_every if target.stall_ms else 0
        knobs = target.to_dict()
        steps = min(target.steps or STEPS, max(STEPS, stalls))
        found = []
        for draw in range(DRAWS):
            work = self.work(target, step, steps, np.random.default_rng(draw))
            loop = Simulation(work, self.cores, target.num_workers, in_flight(knobs))
            seconds = NEVER if target.seconds is None else target.seconds
            found.append(loop.run(seconds, warmup_steps(knobs), target.batch_size))
        return np.array(found).T

    def work(self, target: Pipeline, step: float, steps: int, rng: np.random.Generator) -> Load:
        """Draw the work of `steps` batches of `target`; a step takes `step` times the measured."""
        old = self.run.pipeline
        scale = target.batch_size / old.batch_size
        costs = self.batches.iloc[_draw_rows(len(self.batches), steps, rng)]
        rows = _draw_rows(len(self.host), steps, rng)
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
            gpu=None if self.on_cpu else (self.device[rows] * step).tolist(),
            copy=(self.copy[rows] * scale).tolist(),
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
    in_time = run.seconds(table.start_ns.to_numpy(float)) < run.length_s
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
    spent = host_s[:, DONE] - host_s[:, COPIED]
    # A full queue holds up a host that is more than a step ahead: such steps count for no more than
    # those in which it was not, or else than the shortest of the run, its first ones included
    begin, _ = run.busy.T
    ahead = begin > run.issued
    calm = np.median(spent[~ahead]) if (~ahead).sum() >= FEW_CALM else spent.min()
    return np.where(ahead, np.minimum(spent, calm), spent)[run.warmup :]


def _draw_rows(count: int, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (steps,) indices from a bootstrap sample of `count` measured ones."""
    pool = rng.integers(count, size=count)
    return pool[rng.integers(count, size=steps)]


_costs_of = functools.lru_cache(maxsize=4)(RunCosts)
_simulate = functools.lru_cache(maxsize=256)(RunCosts.simulate)  # a slider asks many of one run


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


def predict(run: RunData, **changes: Setting) -> Prediction:
    """Predict throughput and utilization of `run` with some knobs changed.

    Raises ValueError for a name that is no knob, or a value that it does not take.
    """
    check_names(changes, KNOBS)
    changes = {name: KNOBS[name].check(value) for name, value in changes.items()}
    run = run.data
    try:
        known = _costs_of(run)
        target = _target(run.pipeline, changes)
        step = _step(run, run.pipeline, target)
        if target.num_workers and not run.pipeline.num_workers and not known.handoff:
            raise CannotPredict(
                "sending a batch from a worker was not measured: run it with num_workers=1"
            )
        rates, shares, cores = _simulate(known, target, step)
    except CannotPredict as why:
        return Prediction(changes, cannot=f"cannot predict: {why}.", why=str(why))
    # What the model misses in the run itself, of which half stays: its root
    measured = run.throughput or 0.0
    missed = np.sqrt(measured / np.median(_simulate(known, run.pipeline, 1.0)[0]))
    rates = rates * missed
    shares = np.minimum(1.0, shares * missed)
    throughput, utilization = float(np.median(rates)), float(np.median(shares))
    limit = "cpu" if np.median(cores) > CPU_BOUND else "input"
    if utilization > DEVICE_BOUND:
        limit = "device"
    rate_error, share_error, what_limits = LIMITS[limit]
    error = 1 + float(np.hypot(2 * np.std(rates) / throughput, rate_error))
    spread = float(np.hypot(2 * np.std(shares), share_error))
    gain, noise = throughput / measured - 1, max(WORTH, run.spread or 0.0)
    said = f"{1 + gain:.2f}x the measured throughput; then"
    if abs(gain) <= noise:
        said = f"it will not help: {gain:+.0%} is within the noise of {noise:.0%};"
    return Prediction(
        changes,
        throughput=throughput,
        throughput_range=(throughput / error, throughput * error),
        utilization=utilization,
        utilization_range=(max(0.0, utilization - spread), min(1.0, utilization + spread)),
        limit=limit,
        why=f"{said} {what_limits}",
    )


def _target(pipeline: Pipeline, changes: dict[str, Setting]) -> Pipeline:
    """Return the pipeline with the changes; without workers also without what needs them."""
    # A delay of None would be this machine's choice: the run's own stands
    delays = ("io_ms", "prep_ms")
    knobs = {name: it for name, it in changes.items() if it is not None or name not in delays}
    if knobs.get("num_workers", pipeline.num_workers) == 0:
        knobs = WITHOUT_WORKERS | knobs
    return pipeline.but(**knobs)


def _step(run: RunData, old: Pipeline, target: Pipeline) -> float:
    """Return the time of a step over that of the measured one.

    What batch size and BF16 do to a step is known of the x-ray alone.
    """
    xray = run.xray_facts or {}
    no_effect = "pin_memory" if run.machine.kind == "cpu" else None  # where nothing is copied
    changed = {
        name: value
        for name, value in target.to_dict().items()
        if value != getattr(old, name)
        and name != no_effect
        and "outside step" not in KNOBS[name].traits
    }
    factor = 1.0
    growth = target.batch_size / old.batch_size
    fixed = xray.get("fixed_share")
    if fixed is not None and 1 / BATCH_FACTOR <= growth <= BATCH_FACTOR:
        changed.pop("batch_size", None)
        factor *= fixed + (1 - fixed) * growth
    speedup = xray.get("bf16_speedup")
    if speedup and old.precision in ("fp32", "ieee") and changed.get("precision") == "bf16":
        del changed["precision"]
        factor /= speedup
    if changed:
        more = XRAY_TELLS if changed.keys() & {"batch_size", "precision"} else ""
        raise CannotPredict(
            f"the effect of {' and '.join(changed)} was not measured: "
            f"run it once with {as_typed(changed)}{more}"
        )
    return factor


# -- what follows for a bench's run: how many workers, how deep a queue -----------------------


def recommend(run: RunData, knob: str) -> int | None:
    """Return the best "num_workers" or "prefetch_factor" of `run`; None where none is predicted.

    That is the smallest value whose simulated throughput comes within `AS_GOOD` of the best; the
    run's own stays unless another one gains more than `WORTH`. A queue is only made deeper. The
    machine's cores are part of the simulation, so items that compute get no more workers than there
    are cores; items that wait may get up to the larger of `LEAST_MAX_WORKERS` and twice the cores.
    """
    own = run.pipeline.to_dict()[knob]
    most = max(LEAST_MAX_WORKERS, 2 * (run.machine.cpu_cores or 1))
    values = {count for count in WORKER_COUNTS if count <= most}
    if knob == "prefetch_factor":
        own = own or PYTORCH_PREFETCH
        values = {deep for deep in PREFETCH if deep > own}
    rates = {each: predict(run, **{knob: each}).throughput or 0.0 for each in {*values, own}}
    best = max(rates.values())
    if not all(rates.values()):  # a run that was stopped has its times, but no handoff
        return None
    if best <= (1 + WORTH) * rates[own]:
        return own
    return min(value for value, rate in rates.items() if rate >= (1 - AS_GOOD) * best)
