"""What simulations say of a bench's run: how many workers its loader needs, how deep a queue."""

from __future__ import annotations

from labkit.prediction.prediction import WORTH, predict_from
from labkit.results.run_data import RunData
from labkit.spec import PYTORCH_PREFETCH

# Numbers of workers among which one is recommended; those above the cores help items that wait
WORKER_COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PREFETCH = (2, 4, 8, 16)  # batches that a worker prepares ahead, to choose from
LEAST_MAX_WORKERS = 12  # considered even on few cores, for items that wait
AS_GOOD = 0.03  # a throughput this close to the best is as good: then fewer workers are


def recommend_workers(run: RunData) -> int | None:
    """Return how many loader workers `run` should have, or None where nothing can be predicted.

    This is the one rule for that number: see `_cheapest`. The machine's cores are part of the
    simulation, so items that compute get no more workers than there are cores; items that wait may
    get up to the larger of `LEAST_MAX_WORKERS` and twice the cores.
    """
    most = max(LEAST_MAX_WORKERS, 2 * (run.machine.cpu_cores or 1))
    counts = [count for count in WORKER_COUNTS if count <= most]
    return _cheapest(run, "num_workers", run.pipeline.num_workers, counts)


def recommend_prefetch(run: RunData) -> int | None:
    """Return the smallest prefetch_factor that is as good as the best.

    None where none gains, or where nothing can be predicted.
    """
    now = run.pipeline.to_dict()["prefetch_factor"] or PYTORCH_PREFETCH
    deeper = [factor for factor in PREFETCH if factor > now]
    best = _cheapest(run, "prefetch_factor", now, deeper)
    return None if best == now else best


def _cheapest(run: RunData, knob: str, own: int | None, values: list[int]) -> int | None:
    """Return the smallest value whose simulated throughput comes within `AS_GOOD` of the best.

    The run's own stays unless another one gains more than `WORTH`; None where nothing is predicted.
    """
    rates = {value: predict_from(run, {knob: value}).throughput for value in [*values, own]}
    known = {value: rate for value, rate in rates.items() if rate}
    # A run that was stopped has its times, but no hand-over: no other number can be simulated
    if own not in known or len(known) < len(rates):
        return None
    best = max(known.values())
    if best <= (1 + WORTH) * known[own]:
        return own
    return min(value for value, rate in known.items() if rate >= (1 - AS_GOOD) * best)
