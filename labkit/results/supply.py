"""What the batches of a loader show together: a few items that take far longer than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

LEAST_BATCHES = 10  # to speak of slow items among others
SLOW_TIMES = 10.0  # an ordinary item's time (pytorch/pytorch#105203, #135409)
FEW_ITEMS = 0.05  # of all, at most
MOST_BATCHES = 0.9  # with such an item; where all have one, the batch was fetched at once


@dataclass(frozen=True)
class FewSlow:
    """A few items that take far longer than the others. Shares are 0 to 1."""

    batches: pandas.DataFrame  # those with such an item
    one_in: int  # items
    seconds: float  # that it takes, the median
    times: float  # an ordinary item's time
    share: float  # of all the time in which items are prepared
    held_up: float  # of the loop's waiting, beyond these batches' part of all


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
    seconds = float(np.median(found.slow_s))
    return FewSlow(
        batches=found,
        one_in=round(items / slow.sum()),
        seconds=seconds,
        times=seconds / usual_s,
        share=float(found.slow_s.sum() / made.sum()),
        held_up=float(waited[slow].sum() / max(waited.sum(), 1e-9) - slow.mean()),
    )
