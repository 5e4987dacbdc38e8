"""Measure, once a run is over, other settings of its step and the cost of handing over a batch.

A run without workers cannot tell what a handoff costs, and with workers it hides in the waiting.
So one worker hands over a few ready batches of the run's own shape, each taken right behind a
step, as in a run that is fed: at rest, taking one costs up to five times as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from labkit.bench import formats, memory_limit
from labkit.bench.process import worker_dies_with_bench
from labkit.process.events import EventLog, now_ns

ROUNDS = 7
BUDGET_S = 0.3  # for all rounds; at least two are done
HOPELESS = 3.0  # BF16 so much slower in its first step is not tried again

HANDOFF_ROUNDS = 12
COLD_EVERY = 3  # rounds: one behind a long wait, the others right behind a step
FIRST = 2  # rounds that are left out: the worker starts
HANDOFF_BUDGET_S = 0.35
HANDOFF_COST_S = 0.4  # about what it takes with the worker's start; see `profile.keep_time`
COLD_S = 0.035  # after such a wait the model finds cold caches and a core that was asleep
SETTLE_S = 0.004  # between two batches where there is no step that could be tried
MIN_STEPS = 8  # of a run: a shorter one is a quick look


def measure(trainer: Any, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float | None]:
    """Time one step's compute as it is, with twice the batch, and in BF16.

    They are timed in turn, round after round, on the run's last batch (images (B, 3, px, px) uint8
    and labels (B,) int64, on the device), so that nothing else differs. The weights of `trainer`
    move on, so the run must be over.

    Returns:
        `plain_us`: median time of the compute, µs; `fixed_share`: the part of it (0 to 1) that
        does not grow with the batch; `bf16_speedup`: time as it is over time in BF16. None where
        it could not be tried.
    """
    asked = trainer.job.precision
    kinds = {"plain": (images, labels, asked)}
    if not hasattr(trainer.model, "_orig_mod"):  # a compiled model would be compiled anew
        kinds["double"] = (torch.cat([images, images]), torch.cat([labels, labels]), asked)
        if asked == "fp32" and not formats.lacks("bf16", trainer.device):
            kinds["bf16"] = (images, labels, "bf16")
    times: dict[str, list[float]] = {name: [] for name in kinds}
    started = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for name, kind in list(kinds.items()):
            try:
                seconds = _timed(trainer, *kind)
            except RuntimeError as error:
                if name == "plain" or not memory_limit.refused(error):
                    raise
                trainer.optimizer.zero_grad(set_to_none=True)
                del kinds[name], times[name]  # no room for it: the others stand
                continue
            compared = name == "bf16" and not turn
            slow = compared and seconds > HOPELESS * _timed(trainer, *kinds["plain"])
            if turn or slow:
                times[name].append(seconds)  # the first of each warms up
            if slow:
                del kinds[name]
        if turn >= 2 and time.perf_counter() - started > BUDGET_S:
            break
    took = {name: median(seconds) for name, seconds in times.items() if seconds}
    plain, double, bf16 = took["plain"], took.get("double"), took.get("bf16")
    return {
        "plain_us": plain * 1e6,
        "fixed_share": None if double is None else min(max(2 - double / plain, 0.0), 1.0),
        "bf16_speedup": None if bf16 is None else plain / bf16,
    }


def _timed(trainer: Any, images: torch.Tensor, labels: torch.Tensor, precision: str) -> float:
    """Return how long one compute takes on the device, s."""
    on_cpu, asked = trainer.device.type == "cpu", trainer.job.precision
    clock = time.thread_time if on_cpu else time.perf_counter  # not the time others had the core
    trainer.job.precision = precision
    try:
        finish(trainer.device)
        start = clock()
        trainer.compute(images, labels, update=True)
        finish(trainer.device)
        return clock() - start
    finally:
        trainer.job.precision = asked


def finish(device: torch.device) -> None:
    """Wait for the device; a CPU has nothing in flight."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# -- handing over a batch --------------------------------------------------------------------------


class Ready(torch.utils.data.Dataset):
    """Batches that are there at once: all that is left is handing them over."""

    def __init__(self, batch: tuple[torch.Tensor, ...]):
        self.batch, self.before = batch, None

    def __len__(self) -> int:
        return HANDOFF_ROUNDS + 4  # more than are taken: the last are prepared as the others

    def __getitem__(self, _: int) -> tuple:
        now = time.process_time_ns()
        between = 0 if self.before is None else now - self.before
        start = time.thread_time_ns()
        batch = tuple(tensor.clone().share_memory_() for tensor in self.batch)
        shared = time.thread_time_ns()
        for tensor in self.batch:
            tensor.clone()
        clone = time.thread_time_ns() - shared
        self.before = time.process_time_ns()
        return *batch, between, max(0, shared - start - clone)


def hand_over(batch: tuple[torch.Tensor, ...], steps: int, log: EventLog, trainer: Any) -> None:
    """Write the `handoff` event, or why there is none. Never ends the run."""
    if steps < MIN_STEPS:
        return
    # a device of its own leaves the host's caches as they are
    on_cpu = trainer is not None and trainer.device.type == "cpu"
    try:
        log.write("handoff", **_handoff_costs(batch, trainer if on_cpu else None))
    except Exception as error:  # the run itself is complete: its numbers stand
        log.write("no_handoff", why=f"{type(error).__name__}: {str(error)[:300]}")


def _handoff_costs(batch: tuple[torch.Tensor, ...], trainer: Any) -> dict[str, float | None]:
    """Hand `batch` over a few times, let `trainer`, if any, train on it, and return the medians.

    Returns:
        In µs: `main_wall_us` and `main_cpu_us`, from asking for a batch that is there to having
        it; `touch_us`, what reading it the first time takes longer than the second; `share_us`,
        CPU time of the worker to put it into shared memory; `worker_us`, other CPU time of the
        worker a batch, all its threads; `start_us`, from nothing to the first batch; `warm_us`
        and `cold_us`, CPU time of the compute right behind a step, and 35 ms after it (None
        where not tried). And `bytes`.
    """
    care = {"worker_init_fn": worker_dies_with_bench, "timeout": 20}
    loader = torch.utils.data.DataLoader(Ready(batch), batch_size=None, num_workers=1, **care)
    rows, warm, cold, begun = [], [], [], now_ns()
    iterator = iter(loader)
    received = next(iterator)
    start_us = (now_ns() - begun) / 1e3
    for turn in range(HANDOFF_ROUNDS):
        late, touch = turn % COLD_EVERY == 0, 0
        if trainer is None or late:
            time.sleep(COLD_S if trainer else SETTLE_S)
        wall, cpu = now_ns(), time.thread_time_ns()
        received = next(iterator)
        wall, cpu = now_ns() - wall, time.thread_time_ns() - cpu
        if trainer is None:
            touch = _cpu_ns(received[0].sum) - _cpu_ns(received[0].sum)
        else:
            (cold if late else warm).append(_cpu_ns(_step, trainer, *received[:-2]))
        if trainer is None or not late:
            rows.append((wall, cpu, touch, *received[-2:]))
        if now_ns() - begun > HANDOFF_BUDGET_S * 1e9 and len(rows) > FIRST + 1:
            break
    wall, cpu, touch, between, share = map(median, zip(*rows[FIRST:], strict=True))
    return {
        "main_wall_us": wall / 1e3, "main_cpu_us": cpu / 1e3, "touch_us": max(0.0, touch / 1e3),
        "share_us": share / 1e3, "worker_us": between / 1e3, "start_us": start_us,
        "warm_us": median(warm[1:]) / 1e3 if warm else None,
        "cold_us": median(cold[1:]) / 1e3 if len(cold) > 2 else None,
        "bytes": sum(tensor.nbytes for tensor in batch),
    }  # fmt: skip


def _step(trainer: Any, *batch: torch.Tensor) -> None:
    trainer.compute(*trainer.to_device(*batch), update=True)


def _cpu_ns(work: Callable, *given: Any) -> int:
    start = time.thread_time_ns()
    work(*given)
    return time.thread_time_ns() - start
