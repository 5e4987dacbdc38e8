"""What handing a batch over from a loader's worker costs, measured after a run's last step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from labkit.bench.loader_workers import worker_dies_with_bench
from labkit.bench.loop import Trainer
from labkit.bench.optional import write_or_why
from labkit.process.events import EventLog, now_ns

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
    """What handing one batch over took, ns."""

    wall: int  # from asking for a batch that is there to having it
    touch: int  # CPU time that reading it the first time takes longer than again
    share: int  # CPU time of the worker to move it to shared memory
    worker: int  # CPU time of the worker for a batch, moving it included


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
    warm: list[int] = []  # CPU times of steps right after the one before, ns
    cold: list[int] = []  # CPU times of steps after a long wait, ns
    if trainer is None:
        rounds = _without_steps(iterator, deadline)
    else:
        rounds = _after_steps(iterator, deadline, trainer, warm, cold)
    wall, touch, share, worker = map(median, zip(*rounds[FIRST:], strict=True))
    return {
        "main_wall_us": wall / 1e3,
        "touch_us": max(0.0, touch / 1e3),
        "share_us": share / 1e3,
        "worker_us": worker / 1e3,
        "warm_us": median(warm[1:]) / 1e3 if warm else None,
        "cold_us": median(cold[1:]) / 1e3 if len(cold) > 2 else None,
        "bytes": sum(tensor.nbytes for tensor in batch),
    }


def _without_steps(iterator: Handed, deadline: int) -> list[Handoff]:
    """Take batches at rest."""
    rounds: list[Handoff] = []
    while len(rounds) < ROUNDS and not _is_over(deadline, rounds):
        time.sleep(SETTLE_S)
        received, took = _taken(iterator)
        rounds.append(took._replace(touch=_first_touch(received[0])))
    return rounds


def _after_steps(
    iterator: Handed, deadline: int, trainer: Trainer, warm: list[int], cold: list[int]
) -> list[Handoff]:
    """Take batches right after steps, whose CPU times go to `warm` and `cold`."""
    rounds: list[Handoff] = []
    for turn in range(ROUNDS):
        late = turn % COLD_EVERY == 0
        if late:
            time.sleep(COLD_S)
        received, took = _taken(iterator)
        start = time.thread_time_ns()
        trainer.compute(*trainer.to_device(*received), update=True)
        (cold if late else warm).append(time.thread_time_ns() - start)
        if not late:
            rounds.append(took)
        if _is_over(deadline, rounds):
            break
    return rounds


def _taken(iterator: Handed) -> tuple[Batch, Handoff]:
    """Take a batch; return it, and what that took, but for its first touch."""
    asked = now_ns()
    received, between, share = next(iterator)
    return received, Handoff(now_ns() - asked, 0, share, between)


def _is_over(deadline: int, rounds: list[Handoff]) -> bool:
    return now_ns() > deadline and len(rounds) > FIRST + 1


def _first_touch(tensor: torch.Tensor) -> int:
    """Return the CPU time (ns) that reading a tensor the first time takes longer than again."""
    start = time.thread_time_ns()
    tensor.sum()
    middle = time.thread_time_ns()
    tensor.sum()
    return 2 * middle - start - time.thread_time_ns()
