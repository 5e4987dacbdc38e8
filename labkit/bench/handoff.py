"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time
from statistics import median

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
COLD_EVERY = 3  # rounds: one after a long wait, the others right after a step
FIRST = 2  # rounds that are left out: the worker starts
COLD_S = 0.035  # after such a wait the model finds cold caches and a core that was asleep
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
        """Return the batch; CPU time (ns) since the one before, and of moving this one."""
        between = time.process_time_ns() - self.before_ns
        start = time.thread_time_ns()
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        shared = time.thread_time_ns()
        for tensor in self.batch:
            tensor.clone()
        cloning = time.thread_time_ns() - shared
        self.before_ns = time.process_time_ns()
        return batch, between, max(0, shared - start - cloning)


def look(batch: Batch, steps: int, log: EventLog, trainer: Trainer | None) -> None:
    """Write the `handoff` event, or `no_handoff` and why. Never ends the run.

    Batches are taken right after a step: at rest, taking one costs up to five times as much.
    """
    if steps < MIN_STEPS:
        return
    if trainer is not None and trainer.device.type != "cpu":
        trainer = None  # a device of its own leaves the host's caches as they are
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
    soon: list[tuple[int, ...]] = []
    late: list[tuple[int, ...]] = []  # those after a long wait
    for turn in range(ROUNDS):
        is_late = trainer is not None and turn % COLD_EVERY == 0
        if is_late or trainer is None:
            time.sleep(COLD_S if is_late else SETTLE_S)
        asked = now_ns()
        received, worker, share = next(batches)
        took = now_ns() - asked
        (late if is_late else soon).append((took, share, worker, _used(received, trainer)))
        if now_ns() > deadline and len(soon) > FIRST + 1:
            break
    names = ("main_wall_us", "share_us", "worker_us", "warm_us" if trainer else "touch_us")
    costs = {
        name: max(0.0, median(each) / 1e3)
        for name, each in zip(names, zip(*soon[FIRST:], strict=True), strict=True)
    }
    if len(late) > 2:
        costs["cold_us"] = median(used for *_, used in late[1:]) / 1e3
    return costs | {"bytes": sum(tensor.nbytes for tensor in batch)}


def _used(batch: Batch, trainer: Trainer | None) -> int:
    """Train on a batch, or read it; return the CPU time (ns), of a read beyond that of another."""
    start = time.thread_time_ns()
    if trainer is not None:
        trainer.compute(*trainer.to_device(*batch), update=True)
        return time.thread_time_ns() - start
    batch[0].sum()
    middle = time.thread_time_ns()
    batch[0].sum()
    return 2 * middle - start - time.thread_time_ns()
