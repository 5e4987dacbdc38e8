"""What a loader's workers show together: who held up whom, and what they keep in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.results.loader_records import Batches
from labkit.results.record import Event

KIB_PER_GIB = 2**20


@dataclass(frozen=True)
class MemoryGrowth:
    """What the workers hold more than at their first batch, GiB of all workers together."""

    gained: float  # memory of their own
    copied: float  # of which so much was shared with the main process before (copy-on-write)


def late_share(batches: Batches) -> float | None:
    """Return the share of the loop's waiting in which a later batch was ready already.

    Batches are delivered in order, so it waits for the one that is late. None where the loop waited
    for none, or where it is not known when it asked.
    """
    known = (batches.worker >= 0) & ~np.isnan(batches.asked)
    if len(np.unique(batches.worker[known])) < 2:
        return None
    order = np.argsort(batches.asked[known], kind="stable")
    asked, ready, taken = (
        column[known][order] for column in (batches.asked, batches.ready, batches.taken)
    )
    waited = float(np.clip(taken - asked, 0, None).sum())
    if waited <= 0:
        return None
    later = np.append(np.minimum.accumulate(ready[::-1])[::-1][1:], np.inf)
    blocked = np.clip(ready - np.maximum(asked, later), 0, None)
    return min(1.0, float(blocked.sum()) / waited)


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
