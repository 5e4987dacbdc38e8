"""The one rule for the number of a loader's workers, and for the depth of their queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkit.diagnosis.core_use import CoreUse
from labkit.diagnosis.estimate import Estimate, Workers
from labkit.diagnosis.hot_lines import Lines
from labkit.diagnosis.loader_simulation import Load, Simulation
from labkit.diagnosis.prediction import DRAWS, MODEL_ERROR, STEPS, WORTH, predict, predict_from
from labkit.diagnosis.thresholds import HANDOFF_US
from labkit.results.log_reader import of_one_moment
from labkit.results.run import Run
from labkit.results.step_classes import body_seconds
from labkit.spec import PYTORCH_PREFETCH

RANKING_DRAWS = 1  # simulated runs, to find the settings that may be best: those are drawn in full
MAY_BE_BEST = 0.06  # a setting at most this far below the best of that ranking is drawn in full
# Numbers of workers among which one is recommended; those above the cores help items that wait
WORKER_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (2, 4, 8, 16)  # batches that a worker prepares ahead, to choose from
LEAST_MAX_WORKERS = 12  # considered even on few cores, for items that wait
HANDOFF_S = HANDOFF_US / 1e6  # of a batch from a worker, where it was not measured
GAINS = 0.01  # a larger number of workers that gains less brings nothing
LEVEL = 3  # after this many larger numbers that bring nothing, no more are tried
AS_GOOD = 0.03  # a throughput this close to the best is as good: then fewer workers are
AS_IT_IS = Estimate(1.0, 1.0, 1.0)  # the gain of what does not change


@of_one_moment
def recommend_workers(run: Run, lines: Lines | None = None) -> Workers | None:
    """Return how many loader workers `run` should have, or None where nothing can be predicted.

    This is the one rule for that number: the fewest workers whose simulated throughput comes within
    `AS_GOOD` of the best. The run's own number stays unless another one gains more than `WORTH`.
    The machine's cores are part of the simulation, so items that compute get no more workers than
    there are cores; items that wait may get up to the larger of `LEAST_MAX_WORKERS` and twice the
    cores.

    Args:
        run: A Run with two measured steps or more; a watched loop needs a torch DataLoader.
        lines: The run's `lines`, where they are known already; they tell of a watched loop, and of
            a run that was stopped, which part of the loading waits. Without them the range reaches
            from all of it to none.
    """
    own = run.pipeline.num_workers

    def rate(count: int, draws: int = RANKING_DRAWS) -> float:
        return predict_from(run, {"num_workers": count}, draws).throughput or 0.0

    # A run that was stopped has its times, but no hand-over: no other number can be simulated
    if own is None or not rate(own, DRAWS) or not rate(1):
        return _of_times(run, lines)
    roughly = _rates(own, run.machine.cpu_cores, rate)
    least = (1 - MAY_BE_BEST) * max(roughly.values())
    near = [count for count, value in roughly.items() if value >= least]
    chosen = _fewest(own, {count: rate(count, DRAWS) for count in (own, *near)})
    if chosen == own:
        return Workers(own, AS_IT_IS)
    found = predict(run, num_workers=chosen).estimate
    return Workers(chosen, found.times(1 / run.throughput)) if found and run.throughput else None


def workers_from_times(
    make_s: float | np.ndarray,
    step_s: float | np.ndarray,
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
        threads: Threads that the body computes with, on a CPU; 1 for a GPU.
    """
    error = MODEL_ERROR["input"]
    draws = np.random.default_rng(0)
    made_s = draws.choice(np.atleast_1d(make_s), (STEPS, 1))
    body_s = draws.choice(np.atleast_1d(step_s), STEPS)
    likely = 1.0 if computes is None else computes
    loop = _TimedLoop(made_s, body_s, likely, cores, own, threads)
    known = loop.rates(likely)
    chosen = _fewest(own, known, error)
    if chosen == own:
        return Workers(own, AS_IT_IS)
    possible = [known, loop.rates(0.0)] if computes is None else [known]
    gains = [each[chosen] / each[own] for each in possible if chosen in each]
    gain = Estimate(gains[0], min(gains) / (1 + error), max(gains) * (1 + error))
    kept = loop.threads_with(chosen)
    return Workers(chosen, gain, threads=kept if kept < threads else None)


@dataclass(frozen=True, eq=False)
class _TimedLoop:
    """A loop of which times alone are known."""

    made_s: np.ndarray  # (STEPS, 1), of a batch in one process
    body_s: np.ndarray  # (STEPS,), of the loop's body
    computes: float  # the likely share of `made_s` that takes a core
    cores: float | None
    own: int  # workers
    threads: int  # that the body computes with

    def threads_with(self, workers: int) -> int:
        """Return the threads that the body should compute with beside this number of workers."""
        if workers == self.own:
            return self.threads
        return threads_beside(workers * self.computes, self.threads, self.cores)

    def rates(self, computes: float) -> dict[int, float]:
        """Return the rates with several numbers of workers, where batches compute such a share."""

        def rate(workers: int) -> float:
            kept = self.threads_with(workers)
            work = Load(
                waits=self.made_s * (1 - computes),
                cpus=self.made_s * computes,
                host=self.body_s * self.threads / kept,
                put=HANDOFF_S / 2,
                take=HANDOFF_S / 2,
                host_threads=kept,
            )
            simulation = Simulation(work, self.cores or max(WORKER_COUNTS), workers, 2)
            return simulation.run().summary(max(3, 2 * workers), 1).throughput

        return _rates(self.own, self.cores, rate)


def threads_beside(busy_workers: float, threads: int, cores: float | None) -> int:
    """Return the threads with which a step on the CPU computes best beside busy workers.

    A parallel operator ends with its last thread. Where a worker has the core of one, the others
    spin until the scheduler gives it back, once for each operator: with two workers on two cores,
    steps of 1 ms and a dozen operators took 10 to 20 ms, and the loop gained 1.08x to 1.27x from
    the workers; with one thread it gained 1.4x to 1.85x (five loops of
    `maintain/benchmarks/held_out.py`, Xeon VM, torch 2.13).

    Args:
        busy_workers: Workers times the share of their time in which they compute.
        threads: That the step computes with now.
        cores: That loop and workers can have; None where that is not known.
    """
    if cores is None or threads <= 1:
        return threads
    return max(1, min(threads, round(cores - busy_workers)))


def _of_times(run: Run, lines: Lines | None) -> Workers | None:
    """Return what stamps and sampled stacks say of the workers, where no item was timed."""
    own = run.pipeline.num_workers
    stamps = run.stamps[run.warmup :]
    if own is None or len(stamps) < 2:
        return None
    use = CoreUse.of(run)
    cores = use.cores
    if cores and use.is_shared:  # what other programs take, no worker has
        cores = max(1.0, cores * (1 - use.others_share))
    wait_s = stamps[:, 1] - stamps[:, 0]
    body_s = body_seconds(stamps)
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
    threads = run.machine.threads if run.machine.kind == "cpu" else None
    threads = max(1, int(min(threads or 1, cores or 1)))
    return workers_from_times(made_s, body_s, cores, own=own, computes=computes, threads=threads)


def _rates(own: int, cores: float | None, rate: Callable[[int], float]) -> dict[int, float]:
    """Return the rates with several numbers of workers, as many as still gain, and with `own`."""
    most = max(LEAST_MAX_WORKERS, 2 * (cores or 1))
    found = {own: rate(own)}
    best = found[own]
    gained_nothing = 0
    for count in WORKER_COUNTS:
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


def _fewest(own: int, rates: dict[int, float], worth: float = WORTH) -> int:
    """Return the fewest workers that are as good as the best; `own` where that gains too little."""
    best = max(rates.values())
    return own if best <= (1 + worth) * rates[own] else _fewest_as_good(rates)


def _fewest_as_good(rates: dict[int, float]) -> int:
    """Return the smallest of the numbers whose rate is as good as the best."""
    least = (1 - AS_GOOD) * max(rates.values())
    return min(number for number, rate in rates.items() if rate >= least)


@of_one_moment
def recommend_prefetch(run: Run) -> int | None:
    """Return the smallest prefetch_factor that is as good as the best.

    None where none gains more than `WORTH`, or where nothing can be predicted.
    """
    now = run.pipeline.to_dict()["prefetch_factor"] or PYTORCH_PREFETCH
    rates: dict[int, float] = {}
    for factor in PREFETCH:
        if factor > now:
            found = predict_from(run, {"prefetch_factor": factor}, RANKING_DRAWS)
            if found.throughput and found.helps:
                rates[factor] = found.throughput
    return _fewest_as_good(rates) if rates else None
