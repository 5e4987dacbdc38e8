"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from labkit.bench.loop import Trainer
from labkit.instruments.loader_workers import worker_dies_with_bench
from labkit.instruments.optional import write_or_why
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
Handed = Iterator[tuple[Batch, int, int]]  # as `Ready` gives them


class Ready(Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: Batch):
        # A forked worker must not touch pinned memory, which is the driver's: a copy is not pinned.
        self.batch = tuple(part.clone() if part.is_pinned() else part for part in batch)
        self.before_ns: int | None = None

    def __len__(self) -> int:
        return ROUNDS + 4  # more than are taken: the last are prepared as the others

    def __getitem__(self, _index: int) -> tuple[Batch, int, int]:
        """Return the batch; CPU time (ns) since the one before, and of moving this one."""
        now = time.process_time_ns()
        between = 0 if self.before_ns is None else now - self.before_ns
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


class Handoff(NamedTuple):
    """What handing one batch over took, and a step on it; ns."""

    is_late: bool  # whether it came after a long wait
    wall: int  # from asking for a batch that is there to having it
    share: int  # CPU time of the worker to move it to shared memory
    worker: int  # CPU time of the worker for a batch, moving it included
    touch: int  # CPU time that reading it the first time takes longer than again
    step: int  # CPU time of the step


def _costs(batch: Batch, trainer: Trainer | None) -> dict[str, float | None]:
    """Hand `batch` over a few times, let `trainer`, if any, train on it; return medians in µs."""
    loader = DataLoader(
        Ready(batch),
        batch_size=None,
        num_workers=1,
        worker_init_fn=worker_dies_with_bench,
        timeout=TIMEOUT_S,
    )
    deadline = now_ns() + BUDGET_NS
    iterator = iter(loader)
    next(iterator)
    rounds: list[Handoff] = []
    for turn in range(ROUNDS):
        is_late = trainer is not None and turn % COLD_EVERY == 0
        rounds.append(_handed_over(iterator, trainer, is_late))
        if now_ns() > deadline and sum(not each.is_late for each in rounds) > FIRST + 1:
            break
    soon = [each for each in rounds if not each.is_late]
    late = [each for each in rounds if each.is_late]
    measured = soon[FIRST:]
    return {
        "main_wall_us": median(each.wall for each in measured) / 1e3,
        "touch_us": max(0.0, median(each.touch for each in measured) / 1e3),
        "share_us": median(each.share for each in measured) / 1e3,
        "worker_us": median(each.worker for each in measured) / 1e3,
        "warm_us": median(each.step for each in soon[1:]) / 1e3 if trainer else None,
        "cold_us": median(each.step for each in late[1:]) / 1e3 if len(late) > 2 else None,
        "bytes": sum(tensor.nbytes for tensor in batch),
    }


def _handed_over(iterator: Handed, trainer: Trainer | None, is_late: bool) -> Handoff:
    """Take a batch, after a long wait or right after the step before, and train on it."""
    if is_late or trainer is None:
        time.sleep(COLD_S if is_late else SETTLE_S)
    asked = now_ns()
    received, worker, share = next(iterator)
    wall = now_ns() - asked
    if trainer is None:
        return Handoff(is_late, wall, share, worker, _first_touch(received[0]), 0)
    start = time.thread_time_ns()
    trainer.compute(*trainer.to_device(*received), update=True)
    return Handoff(is_late, wall, share, worker, 0, time.thread_time_ns() - start)


def _first_touch(tensor: torch.Tensor) -> int:
    """Return the CPU time (ns) that reading a tensor the first time takes longer than again."""
    start = time.thread_time_ns()
    tensor.sum()
    middle = time.thread_time_ns()
    tensor.sum()
    return 2 * middle - start - time.thread_time_ns()
