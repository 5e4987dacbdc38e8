"""What simulations say of a bench's run: how many workers its loader needs, how deep a queue."""

from __future__ import annotations

from collections.abc import Callable

from labkit.diagnosis.prediction import DRAWS, WORTH, predict_from
from labkit.results.log_reader import of_one_moment
from labkit.results.run import Run
from labkit.spec import PYTORCH_PREFETCH

RANKING_DRAWS = 1  # simulated runs, to find the settings that may be best: those are drawn in full
MAY_BE_BEST = 0.06  # a setting at most this far below the best of that ranking is drawn in full
# Numbers of workers among which one is recommended; those above the cores help items that wait
WORKER_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (2, 4, 8, 16)  # batches that a worker prepares ahead, to choose from
LEAST_MAX_WORKERS = 12  # considered even on few cores, for items that wait
GAINS = 0.01  # a larger number of workers that gains less brings nothing
LEVEL = 3  # after this many larger numbers that bring nothing, no more are tried
AS_GOOD = 0.03  # a throughput this close to the best is as good: then fewer workers are


@of_one_moment
def recommend_workers(run: Run) -> int | None:
    """Return how many loader workers `run` should have, or None where nothing can be predicted.

    This is the one rule for that number: the fewest workers whose simulated throughput comes within
    `AS_GOOD` of the best. The run's own number stays unless another one gains more than `WORTH`.
    The machine's cores are part of the simulation, so items that compute get no more workers than
    there are cores; items that wait may get up to the larger of `LEAST_MAX_WORKERS` and twice the
    cores.
    """
    own = run.pipeline.num_workers

    def rate(count: int, draws: int = RANKING_DRAWS) -> float:
        return predict_from(run, {"num_workers": count}, draws).throughput or 0.0

    # A run that was stopped has its times, but no hand-over: no other number can be simulated
    if own is None or not rate(own, DRAWS) or not rate(1):
        return None
    roughly = _rates(own, run.machine.cpu_cores, rate)
    least = (1 - MAY_BE_BEST) * max(roughly.values())
    near = [count for count, value in roughly.items() if value >= least]
    return _fewest(own, {count: rate(count, DRAWS) for count in (own, *near)})


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


def _fewest(own: int, rates: dict[int, float]) -> int:
    """Return the fewest workers that are as good as the best; `own` where that gains too little."""
    best = max(rates.values())
    return own if best <= (1 + WORTH) * rates[own] else _fewest_as_good(rates)


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
