"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time

import numpy as np
from torch.utils.data import DataLoader, Dataset

from labkit.bench.data import Batch, noise_batch
from labkit.bench.loop import Trainer
from labkit.instruments.loader_workers import worker_dies_with_bench
from labkit.instruments.record_head import write_or_why
from labkit.stamps.events import EventLog, now_ns

COST_S = 0.4  # about what it takes with the worker's start
MIN_STEPS = 8  # of a run: a shorter one is a quick look
ROUNDS = 13  # at the most, and FIRST + 2 at least
BUDGET_NS = 350_000_000
FIRST = 3  # rounds that are left out: the worker starts
SETTLE_S = 0.004  # between two batches where there is no step that could be tried
TIMEOUT_S = 20


class Ready(Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: Batch):
        self.batch = batch
        self.before_ns = time.process_time_ns()

    def __len__(self) -> int:
        return ROUNDS + 4  # more than are taken: the last are prepared as the others

    def __getitem__(self, _index: int) -> tuple[object, int]:
        """Return the batch in shared memory, and the CPU time since the one before, ns."""
        between = time.process_time_ns() - self.before_ns
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        self.before_ns = time.process_time_ns()
        return batch, between


def look(trainer: Trainer, steps: int, log: EventLog) -> None:
    """Write the `handoff` event, or `no_handoff` and why. Never ends the run.

    Batches are taken right after a step: at rest, taking one costs up to five times as much.
    """
    if steps >= MIN_STEPS:
        write_or_why(log, "handoff", lambda: _costs(trainer))


def _costs(trainer: Trainer) -> dict[str, float]:
    """Hand a batch over a few times, let `trainer` train on it; return medians in µs."""
    loader = DataLoader(
        Ready(noise_batch(trainer.job)),
        batch_size=None,
        num_workers=1,
        worker_init_fn=worker_dies_with_bench,
        timeout=TIMEOUT_S,
    )
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
