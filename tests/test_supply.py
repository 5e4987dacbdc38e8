"""What the times of a loader's batches show together, on times written by hand."""

import dataclasses

import numpy as np
import pytest

from labkit.results import supply
from labkit.results.loader_records import Batches


def batches(worker, start, ready, **more):
    """Batches of 8 items from what is known of them, s."""
    columns = {each.name: np.zeros(len(start)) for each in dataclasses.fields(Batches)}
    known = {"worker": worker, "start": start, "asked": start, "ready": ready, "taken": ready}
    columns |= {name: np.array(values, float) for name, values in (known | more).items()}
    return Batches(**columns | {"items": columns["items"] + 8, "of_process": columns["items"] + 1})


def test_waiting_for_a_late_batch_counts_from_when_a_later_one_was_ready():
    # the loop asks for batch 0 at 0 and has it at 10; batch 1 was ready at 4
    seen = batches([0, 1], [0, 0], [10, 4], asked=[0, 10], taken=[10, 10])
    assert supply.late_share(seen) == pytest.approx(0.6)
    in_turn = batches([0, 1], [0, 0], [4, 5], asked=[0, 4], taken=[4, 5])
    assert supply.late_share(in_turn) == 0.0
    assert supply.late_share(batches([0, 0], [0, 5], [5, 9])) is None  # a single worker
    unknown = batches([0, 1], [0, 0], [1, 2], asked=[np.nan] * 2)
    assert supply.late_share(unknown) is None


def growth(*readings):
    """What is made of readings of worker, process, and its own and its shared memory, GiB."""
    names = "worker", "pid", "memory"
    return supply.memory_growth(
        dict(zip(names, (*who, [own * 2**20, also * 2**20]), strict=True))
        for *who, own, also in readings
    )


def test_memory_that_was_shared_before_is_told_from_what_a_worker_keeps():
    assert growth((0, 1, 1, 5), (0, 1, 3, 3)) == supply.MemoryGrowth(2.0, 2.0)
    kept = growth((0, 1, 1, 5), (0, 1, 3, 5), (1, 2, 1, 5), (1, 2, 2, 5))
    assert kept == supply.MemoryGrowth(3.0, 0.0)
    started_anew = growth((0, 1, 1, 5), (0, 1, 2, 5), (0, 2, 1, 5), (0, 2, 2, 5))
    assert started_anew == supply.MemoryGrowth(1.0, 0.0)
    assert supply.memory_growth([{"worker": 0, "pid": 1, "memory": None}]) is None
