"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from labkit.bench.data import CARE_FOR_WORKERS, Batch, noise_batch
from labkit.bench.loop import Trainer
from labkit.stamps.events import now_ns

ROUNDS = 13  # at the most, and FIRST + 2 at least
BUDGET_NS = 350_000_000
FIRST = 3  # rounds that are left out: the worker starts
SETTLE_S = 0.004  # between two batches where there is no step that could be tried


class Ready(IterableDataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: Batch):
        self.batch = batch

    def __iter__(self) -> Iterator[tuple[object, int]]:
        """Yield the batch in shared memory, and the CPU time since the one before, ns."""
        before_ns = time.process_time_ns()
        while True:
            between = time.process_time_ns() - before_ns
            batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
            before_ns = time.process_time_ns()
            yield batch, between


def look(trainer: Trainer) -> dict[str, float]:
    """Return the `handoff` event: what handing a batch over takes, medians in µs.

    Batches are taken right after a step: at rest, taking one costs up to five times as much.
    """
    ready = Ready(noise_batch(trainer.job))
    loader = DataLoader(ready, batch_size=None, num_workers=1, **CARE_FOR_WORKERS)
    deadline = now_ns() + BUDGET_NS
    batches = iter(loader)
    rounds = []
    while len(rounds) < FIRST + 2 or (len(rounds) < ROUNDS and now_ns() < deadline):
        asked = now_ns()
        received, worker = next(batches)
        rounds.append((now_ns() - asked, worker))
        if trainer.device.type == "cpu":
            trainer.compute(*trainer.to_device(*received), update=True)
        else:
            time.sleep(SETTLE_S)
    main_wall, worker = (np.median(rounds[FIRST:], axis=0) / 1e3).tolist()
    return {"main_wall_us": main_wall, "worker_us": worker}
