"""Faults planted on purpose: those that break a run, for tests; `slow_faults` has the costly ones.

Named in the spec's `fault`, never in a Pipeline: no widget or command reaches them. A text such as
"python_heavy@40+checkpoint@8" plants two slow ones, each with its amount.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import signal
import struct
import threading
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


def _exits() -> None:
    os._exit(7)


def _allocates() -> None:
    torch.empty(2**50, dtype=torch.uint8)


def _runs_out_of_cuda_memory() -> None:  # raised, not real: the words are PyTorch's own
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")


def _hangs() -> None:
    time.sleep(3600)


def _hangs_with_the_gil() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it would cut the sleep short
    ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL: no thread and no handler runs


def _stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


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


def _collates_badly(_samples: Any) -> Any:
    raise ValueError("planted: these samples do not go together")


def _cannot_be_sent(_samples: Any) -> Any:
    return threading.Lock()


IN_DATASET = {
    "dataset_raises": _raises,
    "worker_dies": _dies,
    "worker_segfaults": _segfaults,
    "worker_exits": _exits,
    "worker_hangs": _hangs,
}
IN_COLLATE = {"collate_raises": _collates_badly, "sample_unpicklable": _cannot_be_sent}
IN_STEP = {
    "step_raises": _raises,
    "bench_dies": _dies,
    "bench_segfaults": _segfaults,
    "bench_aborts": os.abort,
    "bench_exits": _exits,
    "allocation_fails": _allocates,
    "cuda_out_of_memory": _runs_out_of_cuda_memory,
    "bench_hangs": _hangs_with_the_gil,
    "bench_is_stopped": _stops_itself,
    "ignores_stop": _ignores_stop,
    "floods_stdout": _floods,
    "escapes": _escapes,
}
NOTHING = "nothing"  # breaks nothing: its steps are counted, that is all
BREAKING = (*IN_DATASET, *IN_COLLATE, *IN_STEP, "loss_is_nan", NOTHING)
WORKER_PATIENCE_S = 2.0  # in place of two minutes, for a worker that hangs on purpose
COUNT_NAME = "steps.count"  # how many steps were finished, told past the log and its ring


def plant(fault: str | None, dataset: Any, trainer: Any) -> Any:
    """Plant `fault` in the trainer or return the dataset with it; None changes nothing."""
    if fault and "@" in fault:
        for each in fault.split("+"):
            name, _, amount = each.partition("@")
            dataset = slow_faults.plant(name, float(amount), dataset, trainer)
        return dataset
    if fault is None:
        return dataset
    if fault not in BREAKING:
        raise ValueError(f"there is no fault {fault!r}: use one of {', '.join(BREAKING)}")
    trainer.after_step = _count_steps
    if fault in IN_DATASET:
        return BrokenDataset(dataset, IN_DATASET[fault], at=AT * trainer.job.batch_size)
    if fault in IN_STEP:
        _break_step(trainer, IN_STEP[fault])
    elif fault == "loss_is_nan":
        weights = next(trainer.model.parameters())
        _break_step(trainer, lambda: weights.data.fill_(float("nan")))
    return dataset


def plant_in_loader(fault: str | None, loader: torch.utils.data.DataLoader) -> None:
    """Plant `fault` in what the loader does with samples, or in its patience."""
    if fault in IN_COLLATE:
        collate, breaks, calls = loader.collate_fn, IN_COLLATE[fault], iter(range(10**9))
        loader.collate_fn = lambda samples: (collate if next(calls) < AT else breaks)(samples)
    elif fault == "worker_hangs":
        loader.timeout = WORKER_PATIENCE_S


def _break_step(trainer: Any, breaks: Callable[[], Any]) -> None:
    """Have step `AT` and no other do `breaks()` first."""
    compute, calls = trainer.compute, iter(range(10**9))

    def broken(*args: Any, **kwargs: Any) -> torch.Tensor:
        if next(calls) == AT:
            breaks()
        return compute(*args, **kwargs)

    trainer.compute = broken


@functools.cache
def _counter() -> mmap.mmap:
    with open(COUNT_NAME, "w+b") as file:  # in the run's folder
        file.write(bytes(8))
        file.flush()
        return mmap.mmap(file.fileno(), 8)


def _count_steps() -> None:
    """Count one more finished step in a file that outlives a kill."""
    counter = _counter()
    struct.pack_into("<q", counter, 0, struct.unpack_from("<q", counter)[0] + 1)
