"""What it takes to hand one batch from a worker to the training loop, measured on this machine.

Where a run has no workers it cannot tell, and where it has, the cost hides in the waiting. So when
the run is over, one worker hands over a few ready batches of the run's own shape. Each is taken
right behind a step, as in a run that is fed: at rest, taking one costs up to five times as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from labkit.bench.process import worker_dies_with_bench
from labkit.process.events import EventLog, now_ns

ROUNDS = 12
COLD_EVERY = 3  # rounds: one behind a long wait, the others right behind a step
FIRST = 2  # rounds that are left out: the worker starts
BUDGET_S = 0.35
COST_S = 0.4  # about what it takes with the worker's start; see `xray.keep_time`
COLD_S = 0.035  # after such a wait the model finds cold caches and a core that was asleep
SETTLE_S = 0.004  # between two batches where there is no step that could be tried
MIN_STEPS = 8  # of a run: a shorter one is a quick look


class Ready(torch.utils.data.Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: tuple[torch.Tensor, ...]):
        self.batch, self.before = batch, None

    def __len__(self) -> int:
        return ROUNDS + 4  # a few more than are taken: the last ones are prepared as the others

    def __getitem__(self, _: int) -> tuple:
        now = time.process_time_ns()
        between = 0 if self.before is None else now - self.before
        start = time.thread_time_ns()
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        share = time.thread_time_ns() - start
        start = time.thread_time_ns()
        for tensor in self.batch:
            tensor.clone()
        clone = time.thread_time_ns() - start
        self.before = time.process_time_ns()
        return *batch, between, max(0, share - clone)


def look(
    batch: tuple[torch.Tensor, ...], steps: int, log: EventLog, compute: Callable | None = None
) -> None:
    """Write the `handoff` event, or why there is none. Never ends the run."""
    if steps < MIN_STEPS:
        return
    try:
        log.write("handoff", **measure(batch, compute))
    except Exception as error:  # the run itself is complete: its numbers stand
        log.write("no_handoff", why=f"{type(error).__name__}: {str(error)[:300]}")


def training(trainer: Any) -> Callable | None:
    """Return what trains on one batch; None where a device of its own does that."""
    if trainer.device.type != "cpu":
        return None
    return lambda *batch: trainer.compute(*trainer.to_device(*batch), update=True)


def measure(
    batch: tuple[torch.Tensor, ...], compute: Callable | None = None
) -> dict[str, float | None]:
    """Hand `batch` over a few times, let `compute(*batch)` train on it, and return the medians.

    Returns:
        In µs: `main_wall_us` and `main_cpu_us`, from asking for a batch that is there to having
        it; `touch_us`, what reading it the first time takes longer than the second; `share_us`,
        CPU time of the worker to put it into shared memory; `worker_us`, other CPU time of the
        worker a batch, all its threads; `start_us`, from nothing to the first batch; `warm_us`
        and `cold_us`, CPU time of the compute right behind a step, and 35 ms after it (None
        where not tried). And `bytes`.
    """
    loader = torch.utils.data.DataLoader(
        Ready(batch), batch_size=None, num_workers=1, worker_init_fn=worker_dies_with_bench,
        timeout=20,
    )  # fmt: skip
    rows, warm, cold, begun = [], [], [], now_ns()
    iterator = iter(loader)
    received = next(iterator)
    start_us = (now_ns() - begun) / 1e3
    for turn in range(ROUNDS):
        late = turn % COLD_EVERY == 0
        if compute is None or late:
            time.sleep(COLD_S if compute else SETTLE_S)
        wall, cpu = now_ns(), time.thread_time_ns()
        received = next(iterator)
        wall, cpu = now_ns() - wall, time.thread_time_ns() - cpu
        touch = 0
        if compute is None:
            touch = _reading_ns(received[0]) - _reading_ns(received[0])
        else:
            start = time.thread_time_ns()
            compute(*received[:-2])
            (cold if late else warm).append(time.thread_time_ns() - start)
        if compute is None or not late:
            rows.append((wall, cpu, touch, *received[-2:]))
        if now_ns() - begun > BUDGET_S * 1e9 and len(rows) > FIRST + 1:
            break
    wall, cpu, touch, between, share = map(median, zip(*rows[FIRST:], strict=True))
    return {
        "main_wall_us": wall / 1e3,
        "main_cpu_us": cpu / 1e3,
        "touch_us": max(0.0, touch / 1e3),
        "share_us": share / 1e3,
        "worker_us": between / 1e3,
        "start_us": start_us,
        "warm_us": median(warm[1:]) / 1e3 if warm else None,
        "cold_us": median(cold[1:]) / 1e3 if len(cold) > 2 else None,
        "bytes": sum(tensor.nbytes for tensor in batch),
    }


def _reading_ns(tensor: torch.Tensor) -> int:
    start = time.thread_time_ns()
    tensor.sum()
    return time.thread_time_ns() - start
