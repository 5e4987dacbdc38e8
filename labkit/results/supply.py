"""What the times of a loader's batches show together: who held up whom, and what they share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.results.loader_records import Batches
from labkit.results.record import Event
from labkit.results.step_classes import busy_until

FEW, MANY = 0.65, 0.9  # of the way from one worker that is active to all of them
LEAST_FEW = 4  # batches that were prepared while few were active, for a ratio
NEAR = 3  # times the workers: as many batches before and after one are compared with it
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


def active_workers(batches: Batches) -> np.ndarray:
    """Return how many workers were busy, on average, while each batch was prepared."""
    spent = np.zeros(len(batches))
    for worker in np.unique(batches.worker):
        own = batches.only(batches.worker == worker)
        busy = np.column_stack([own.start, own.ready])
        spent += busy_until(busy, batches.ready) - busy_until(busy, batches.start)
    return spent / np.maximum(batches.ready - batches.start, 1e-9)


def wait_over_alone(batches: Batches) -> float | None:
    """Return how long an item's wait takes with all workers over its wait with a single one.

    Workers that wait each for themselves take as long beside others; 1 for them. Batches are
    compared with their neighbours in time, since a cache fills. None where too few batches were
    prepared while few workers were active, as the last ones of a pass are.
    """
    count = len(np.unique(batches.worker))
    if count < 2:
        return None
    chosen = batches.only(_before_gaps(batches) & (batches.worker >= 0) & (batches.of_process > 0))
    active = active_workers(chosen)
    took = chosen.ready - chosen.start - chosen.cpu_s - chosen.in_line_s
    wait = np.clip(took, 0, None) / np.maximum(chosen.items, 1)
    few = active <= 1 + FEW * (count - 1)
    many = active >= 1 + MANY * (count - 1)
    ratios = []
    for place in np.flatnonzero(few):
        near = slice(max(0, place - NEAR * count), place + NEAR * count + 1)
        beside = many[near]
        if not beside.any():
            continue
        crowd = float(np.median(active[near][beside]))
        crowded = float(np.median(wait[near][beside]))
        if crowded <= 0:
            continue
        slope = (crowded - wait[place]) / (crowd - active[place])
        alone = wait[place] - slope * (active[place] - 1)
        ratios.append(crowded / max(alone, crowded / crowd))
    return float(np.median(ratios)) if len(ratios) >= LEAST_FEW else None


def _before_gaps(batches: Batches) -> np.ndarray:
    """Return the mask of the batches before which no row of their process was left out."""
    process = np.unique([batches.worker, batches.process], axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(process, kind="stable")
    _, first, whose = np.unique(process[order], return_index=True, return_inverse=True)
    is_gap = np.diff(batches.of_process[order], prepend=0) > 1
    is_gap[first] = False
    gaps = np.cumsum(is_gap)
    mask = np.zeros(len(batches), dtype=bool)
    mask[order] = gaps == gaps[first][whose.ravel()]
    return mask


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
