"""What the batches of a loader show together: a few slow items, and memory that grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.stamps.record import Event

if TYPE_CHECKING:
    import pandas

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
    others = (batches["items"] - 1).clip(lower=1)
    each_s = (batches.fetched_s - batches.slow_s) / others
    usual = np.where(batches["items"] > 1, each_s, batches.slow_s)
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

    Of the processes that had a worker's number one after the other the most counts.
    """
    rows = [
        (event["worker"], event["pid"], *held)
        for event in events
        if isinstance(held := event.get("memory"), list) and len(held) == 2
    ]
    if not rows:
        return None
    import pandas

    table = pandas.DataFrame(rows, columns=["worker", "pid", "own", "shared"])
    of_process: Any = table.groupby(["worker", "pid"])
    gained = (of_process.own.last() - of_process.own.first()).clip(lower=0)
    copied = (of_process.shared.first() - of_process.shared.last()).clip(lower=0)
    grown: Any = pandas.DataFrame({"gained": gained, "copied": np.minimum(copied, gained)})
    most = grown.groupby("worker").max().sum() / KIB_PER_GIB
    return MemoryGrowth(float(most.gained), float(most.copied))
