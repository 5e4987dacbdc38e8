"""What the times of a loader's batches show together, on times written by hand."""

import numpy as np
import pytest

from labkit.results import supply
from labkit.results.loader_records import Batches


def batches(worker, start, ready, asked=None, taken=None, **more):
    """Batches of 8 items from what is known of them, s."""
    worker, start, ready = (np.array(each, float) for each in (worker, start, ready))
    columns = dict.fromkeys(("cpu_s", "in_line_s"), np.zeros(len(start)))
    columns |= {"items": np.full(len(start), 8), "of_process": np.ones(len(start))}
    columns |= dict.fromkeys(("process", "process_pass", "epoch"), np.zeros(len(start)))
    columns |= {"fetched": ready}
    columns |= {"asked": np.array(start if asked is None else asked, float)}
    columns |= {"taken": np.array(ready if taken is None else taken, float)}
    columns |= {name: np.array(column, float) for name, column in more.items()}
    return Batches(worker=worker.astype(int), start=start, ready=ready, **columns)


def test_waiting_for_a_late_batch_counts_from_when_a_later_one_was_ready():
    # the loop asks for batch 0 at 0 and has it at 10; batch 1 was ready at 4
    seen = batches([0, 1], [0, 0], [10, 4], asked=[0, 10], taken=[10, 10])
    assert supply.late_share(seen) == pytest.approx(0.6)
    in_turn = batches([0, 1], [0, 0], [4, 5], asked=[0, 4], taken=[4, 5])
    assert supply.late_share(in_turn) == 0.0
    assert supply.late_share(batches([0, 0], [0, 5], [5, 9])) is None  # a single worker
    unknown = batches([0, 1], [0, 0], [1, 2], asked=[np.nan] * 2)
    assert supply.late_share(unknown) is None


def passes(speed_of, workers=4, count=37, times=5, tick=0.05):
    """Simulate passes of batches that each go on at `speed_of(active workers, now)`, 1 in all."""
    rows = []
    now = 0.0
    for _ in range(times):
        left = count
        busy = {}  # worker: when its batch began, and how much of it is done
        while left or busy:
            for worker in set(range(workers)) - set(busy):
                if left:
                    busy[worker] = [now, 0.0]
                    left -= 1
            speed = speed_of(len(busy), now)
            now += tick
            for worker, batch in list(busy.items()):
                batch[1] += speed * tick * (1 + worker / 50)  # they do not keep step
                if batch[1] >= 1:
                    rows.append((worker, batch[0], now))
                    del busy[worker]
    return batches(*zip(*sorted(rows, key=lambda row: row[1]), strict=True))


def latency(active, now):
    return 1.0


def shared(active, now):
    return 1.0 / active


def filling_cache(active, now):
    return 1 / (1 + 3 * np.exp(-now / 20))


@pytest.mark.parametrize(
    "speed_of, least, most",
    [(latency, 0.9, 1.3), (shared, 2.0, 4.1), (filling_cache, 0.9, 1.3)],
)
def test_a_shared_supply_is_told_from_latency_and_from_a_cache_that_fills(speed_of, least, most):
    ratio = supply.wait_over_alone(passes(speed_of))
    assert ratio is not None and least <= ratio <= most


def test_time_in_line_for_a_core_is_no_waiting_for_a_supply():
    crowded = passes(shared)
    in_line = np.maximum(crowded.ready - crowded.start - 1.0, 0)
    seen = Batches(**(vars(crowded) | {"in_line_s": in_line}))
    assert supply.wait_over_alone(seen) == pytest.approx(1.0, abs=0.1)


def event(pid, own, shared, worker=0):
    return {"worker": worker, "pid": pid, "memory": [own * 2**20, shared * 2**20]}


def test_memory_that_was_shared_before_is_told_from_what_a_worker_keeps():
    copied = [event(1, 1, 5), {"worker": 0, "pid": 1, "memory": None}, event(1, 3, 3)]
    assert supply.memory_growth(copied) == supply.MemoryGrowth(2.0, 2.0)
    kept = [event(1, 1, 5), event(1, 3, 5), event(2, 1, 5, worker=1), event(2, 2, 5, worker=1)]
    assert supply.memory_growth(kept) == supply.MemoryGrowth(3.0, 0.0)
    started_anew = [event(1, 1, 5), event(1, 2, 5), event(2, 1, 5), event(2, 2, 5)]
    assert supply.memory_growth(started_anew) == supply.MemoryGrowth(1.0, 0.0)
    assert supply.memory_growth([{"worker": 0, "pid": 1}]) is None
