"""Faults planted on purpose: those that break a run, for tests; `slow_faults` has the costly ones.

Named in the spec's `fault`, never in a Pipeline: no widget or command reaches them. A text such as
"python_heavy@40+checkpoint@8" plants two slow ones, each with its amount.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from labkit.bench import slow_faults

AT = 5  # the item, batch or step that breaks


class BrokenDataset(torch.utils.data.Dataset):
    """Wraps a dataset; fetching a sample of draw number `at` or later does `breaks()` first."""

    def __init__(self, dataset: Any, breaks: Callable[[], None], at: int):
        self.dataset, self.breaks, self.at = dataset, breaks, at
        if hasattr(dataset, "__getitems__"):  # a batch at a time, as the dataset itself does
            self.__getitems__ = self._batch

    def _batch(self, tickets: list[tuple[int, int]]) -> Any:
        if tickets[-1][0] >= self.at:
            self.breaks()
        return self.dataset.__getitems__(tickets)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: tuple[int, int]) -> Any:
        if ticket[0] >= self.at:
            self.breaks()
        return self.dataset[ticket]


def _raises() -> None:
    raise ValueError("planted: this sample cannot be read")


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfaults() -> None:
    ctypes.string_at(0)


def _allocates() -> None:
    torch.empty(2**50, dtype=torch.uint8)


def _hangs_with_the_gil() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it would cut the sleep short
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL: no thread and no handler runs


def _ignores_stop() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(3600)


def _floods() -> None:
    for _ in range(100):
        os.write(1, b"x" * (1 << 20))


def _escapes() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.wait()


IN_DATASET = {"dataset_raises": _raises, "worker_dies": _dies, "worker_segfaults": _segfaults}
IN_STEP = {
    "step_raises": _raises,
    "bench_dies": _dies,
    "bench_segfaults": _segfaults,
    "allocation_fails": _allocates,
    "bench_hangs": _hangs_with_the_gil,
    "ignores_stop": _ignores_stop,
    "floods_stdout": _floods,
    "escapes": _escapes,
}


def plant(fault: str | None, dataset: Any, trainer: Any) -> Any:
    """Plant `fault` in the trainer or return the dataset with it; None changes nothing."""
    if fault and "@" in fault:
        for each in fault.split("+"):
            name, _, amount = each.partition("@")
            dataset = slow_faults.plant(name, float(amount), dataset, trainer)
        return dataset
    if fault in IN_DATASET:
        return BrokenDataset(dataset, IN_DATASET[fault], at=AT * trainer.job.batch_size)
    if fault is not None:
        compute, calls = trainer.compute, iter(range(10**9))

        def broken(*args: Any, **kwargs: Any) -> torch.Tensor:
            if next(calls) == AT:
                IN_STEP[fault]()
            return compute(*args, **kwargs)

        trainer.compute = broken
    return dataset
