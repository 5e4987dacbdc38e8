"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from labkit.bench.loop import Trainer
from labkit.instruments.loader_workers import worker_dies_with_bench
from labkit.instruments.record_head import write_or_why
from labkit.stamps.events import EventLog, now_ns

COST_S = 0.4  # about what it takes with the worker's start
MIN_STEPS = 8  # of a run: a shorter one is a quick look
ROUNDS = 12
BUDGET_NS = 350_000_000
FIRST = 2  # rounds that are left out: the worker starts
SETTLE_S = 0.004  # between two batches where there is no step that could be tried
TIMEOUT_S = 20

Batch = tuple[torch.Tensor, ...]


class Ready(Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: Batch):
        # A forked worker must not touch pinned memory, which is the driver's: a copy is not pinned.
        self.batch = tuple(part.clone() if part.is_pinned() else part for part in batch)
        self.before_ns = time.process_time_ns()

    def __len__(self) -> int:
        return ROUNDS + 4  # more than are taken: the last are prepared as the others

    def __getitem__(self, _index: int) -> tuple[Batch, int, int]:
        """Return the batch; CPU time (ns) of moving this one, and since the one before."""
        between = time.process_time_ns() - self.before_ns
        start = time.thread_time_ns()
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        shared = time.thread_time_ns()
        for tensor in self.batch:
            tensor.clone()
        cloning = time.thread_time_ns() - shared
        self.before_ns = time.process_time_ns()
        return batch, shared - start - cloning, between


def look(batch: Batch, steps: int, log: EventLog, trainer: Trainer | None) -> None:
    """Write the `handoff` event, or `no_handoff` and why. Never ends the run.

    Batches are taken right after a step: at rest, taking one costs up to five times as much.
    """
    if steps >= MIN_STEPS:
        write_or_why(log, "handoff", lambda: _costs(batch, trainer))


def _costs(batch: Batch, trainer: Trainer | None) -> dict[str, float]:
    """Hand `batch` over a few times, let `trainer`, if any, train on it; return medians in µs."""
    loader = DataLoader(
        Ready(batch),
        batch_size=None,
        num_workers=1,
        worker_init_fn=worker_dies_with_bench,
        timeout=TIMEOUT_S,
    )
    deadline = now_ns() + BUDGET_NS
    batches = iter(loader)
    next(batches)
    rounds = []
    for _ in range(ROUNDS):
        asked = now_ns()
        received, share, worker = next(batches)
        rounds.append((now_ns() - asked, share, worker))
        if trainer is not None and trainer.device.type == "cpu":
            trainer.compute(*trainer.to_device(*received), update=True)
        else:
            time.sleep(SETTLE_S)
        if now_ns() > deadline and len(rounds) > FIRST + 1:
            break
    main_wall, share, worker = np.maximum(np.median(rounds[FIRST:], axis=0) / 1e3, 0).tolist()
    return {"main_wall_us": main_wall, "share_us": share, "worker_us": worker}
