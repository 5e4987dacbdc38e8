"""What the times of a loader's batches show together, on times written by hand."""

import numpy as np
import pandas as pd
import pytest

from labkit.results import supply


def batches(worker, start, ready, **more):
    """Batches of 8 items from what is known of them, s."""
    known = {"worker": worker, "start": start, "asked": start, "ready": ready, "taken": ready}
    return pd.DataFrame(known | {"in_line_s": 0.0, "items": 8, "done": 1} | more)


def some_slow(every, seconds, count=120, **more):
    """Batches of 8 items of 10 ms by two workers; one in `every` has an item of so many seconds."""
    slow = np.where(np.arange(count) % every == every // 2, seconds, 0.01)
    took = 0.07 + slow
    start = np.arange(count) * 0.1
    workers = more.pop("worker", np.arange(count) % 2)
    known = {"ready": start + took, "fetched_s": took, "slow_s": slow}
    return batches(workers, start, **known | more)


@pytest.mark.parametrize(
    "seen, one_in",
    [
        (some_slow(20, 2.0), 160),
        (some_slow(20, 0.05), None),  # 5 times the others
        (some_slow(2, 2.0), None),  # one in 16: they are many
        (some_slow(200, 2.0), None),  # a single one
    ],
)
def test_a_few_items_that_take_far_longer_are_told_with_how_often(seen, one_in):
    found = supply.few_slow(seen)
    assert (found and found.one_in) == one_in
    if found is not None:
        assert found.seconds == pytest.approx(2.0) and found.times == pytest.approx(200, rel=0.01)
