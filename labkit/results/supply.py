"""What the batches of a loader show together: a few slow items, and memory that grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas

from labkit.results.record import Event

KIB_PER_GIB = 2**20
LEAST_BATCHES = 10  # to speak of slow items among others
SLOW_TIMES = 10.0  # an ordinary item's time (pytorch/pytorch#105203, #135409)
SEVERAL = 4  # in one worker: fewer may be there by chance
FEW_ITEMS = 0.05  # of all, at most
MOST_BATCHES = 0.9  # with such an item; where all have one, the batch was fetched at once


@dataclass(frozen=True)
class MemoryGrowth:
    """What the workers hold more than at their first batch, GiB of all workers together."""

    gained: float  # memory of their own
    copied: float  # of which so much was shared with the main process before (copy-on-write)


@dataclass(frozen=True)
class FewSlow:
    """A few items that take far longer than the others. Shares are 0 to 1."""

    batches: pandas.DataFrame  # those with such an item
    one_in: int  # items
    seconds: float  # that it takes, the median
    times: float  # an ordinary item's time
    share: float  # of all the time in which items are prepared
    held_up: float  # of the loop's waiting, beyond these batches' part of all
    cpu_share: float  # CPU time over time of these batches

    @property
    def worker(self) -> int | None:
        """The worker that has all of several; None where they are not one's."""
        workers = self.batches.worker.unique()
        return int(workers[0]) if len(workers) == 1 and len(self.batches) >= SEVERAL else None


def few_slow(batches: pandas.DataFrame) -> FewSlow | None:
    """Return what a few slow items cost; None where there are none, or more than a few.

    A batch tells of its slowest item. The first of a process may open files and import modules.
    """
    batches = batches.loc[(batches.done > 0) & (batches["items"] > 0)]
    if len(batches) < LEAST_BATCHES:
        return None
    took = batches.fetched - batches.start - batches.in_line_s
    others = (batches["items"] - 1).clip(lower=1)
    usual = np.where(batches["items"] > 1, (took - batches.slow_s) / others, batches.slow_s)
    usual_s = max(float(np.median(usual)), 1e-6)
    slow = batches.slow_s >= SLOW_TIMES * usual_s
    items = int(batches["items"].sum())
    if not 2 <= slow.sum() <= FEW_ITEMS * items or slow.mean() > MOST_BATCHES:
        return None
    found = batches.loc[slow]
    waited = (batches.taken - batches.asked).clip(lower=0)  # sums leave out what is not known
    made = (batches.ready - batches.start - batches.in_line_s).clip(lower=1e-9)
    return FewSlow(
        batches=found,
        one_in=round(items / slow.sum()),
        seconds=float(np.median(found.slow_s)),
        times=float(np.median(found.slow_s)) / usual_s,
        share=float(found.slow_s.sum() / made.sum()),
        held_up=float(waited[slow].sum() / max(waited.sum(), 1e-9) - slow.mean()),
        cpu_share=float(found.cpu_s.sum() / made[slow].sum()),
    )


def memory_growth(events: Iterable[Event]) -> MemoryGrowth | None:
    """Return what the workers' processes gained, from the events that they wrote; None: not known.

    Of the processes that had a worker's number one after the other the one counts that gained most.
    """
    readings: dict[tuple[int, int], list[list[int]]] = {}  # {worker and its process: memory}
    for event in events:
        held = event.get("memory")
        if isinstance(held, list) and len(held) == 2:
            readings.setdefault((event["worker"], event["pid"]), []).append(held)
    if not readings:
        return None
    most: dict[int, tuple[float, float]] = {}
    for (worker, _), held in readings.items():
        most[worker] = max(most.get(worker, (0.0, 0.0)), _grown(held))
    gained, copied = map(sum, zip(*most.values(), strict=True))
    return MemoryGrowth(gained, copied)


def _grown(held: list[list[int]]) -> tuple[float, float]:
    """Return what a process gained (GiB), and what of it was shared before."""
    own_before, shared_before = held[0]
    own, shared = held[-1]
    gained = max(0, own - own_before) / KIB_PER_GIB
    return gained, min(gained, max(0, shared_before - shared) / KIB_PER_GIB)
