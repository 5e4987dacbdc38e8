"""Challenge: every rank its share of the samples."""

from __future__ import annotations

import math
from typing import Any

from labkit.bench.workbench import Workbench

CASES = ((100, 4), (103, 4), (17, 8), (64, 1))
EPOCHS = 3


def check(answer: Any, bench: Workbench) -> None:
    """Count samples nobody has, shares of another length, repeats, and orders seen before."""
    missing = uneven = repeated = stale = 0
    for count, ranks in CASES:
        orders = set()
        each = math.ceil(count / ranks)
        for epoch in range(EPOCHS):
            shares = [list(answer(count, ranks, rank, epoch)) for rank in range(ranks)]
            drawn = [index for share in shares for index in share]
            missing += len(set(range(count)) - set(drawn))
            uneven += sum(len(share) != each for share in shares)
            repeated += max(0, len(drawn) - len(set(drawn)) - (ranks * each - count))
            stale += tuple(drawn) in orders or drawn == sorted(drawn)
            orders.add(tuple(drawn))
    values = {"missing": missing, "uneven": uneven, "repeated": repeated, "stale": stale}
    bench.write("shards", values=values)


# -- answers: one that passes, and some that do not ------------------------------------------


def shared_order(count, ranks, rank, epoch):
    """One order for all ranks, from the epoch; filled up from its start; every so-many-th."""
    import random

    order = random.Random(epoch).sample(range(count), count)
    order += order[: -count % ranks]
    return order[rank::ranks]


def own_order(count, ranks, rank, epoch):
    """An order of its own for each rank: some samples twice, some never."""
    import random

    order = random.Random(1000 * epoch + rank).sample(range(count), count)
    order += order[: -count % ranks]
    return order[rank::ranks]


def tail_dropped(count, ranks, rank, epoch):
    """Even shares, because the last samples are never seen."""
    import random

    order = random.Random(epoch).sample(range(count), count)
    return order[: count - count % ranks][rank::ranks]


def not_filled(count, ranks, rank, epoch):
    """The ranks with one sample less leave the others waiting."""
    import random

    return random.Random(epoch).sample(range(count), count)[rank::ranks]


def everything(count, ranks, rank, epoch):
    """Nobody misses anything, and nobody is faster than one."""
    import random

    return random.Random(epoch).sample(range(count), count)
