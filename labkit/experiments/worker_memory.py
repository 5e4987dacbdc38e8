"""What each worker's copy of the dataset costs: a list of Python objects against one array."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import psutil
from torch.utils.data import DataLoader, Dataset

from labkit.bench.process import worker_dies_with_bench
from labkit.bench.workbench import Workbench

READINGS = 6


class Labels(Dataset):
    """A million labels or file names, kept in one way or another."""

    def __init__(self, kept: Any):
        self.kept = kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> int:
        return hash(self.kept[index]) & 1


def measure(job: Any, bench: Workbench) -> None:
    """Read through a dataset of `items` names with `workers`; write the workers' private memory.

    A forked worker shares the parent's pages until one of the two writes to them. Reading a Python
    object writes to it: its reference count. So the list is copied page by page, in every worker;
    the array's pages are never written. Measured is the workers' unique set size (psutil), bytes.
    """
    if sys.platform != "linux":
        bench.skip("private memory", "only Linux tells a process's unique memory, and only there "
                                     "are workers forked by default")  # fmt: skip
        return
    names = [f"images/class-{i % 97:02d}/{i:07d}.jpg" for i in range(job.items)]
    ways = {"list of Python objects": names, "one array": np.array(names)}
    for of, kept in ways.items():
        bench.stage(f"measuring: {of}")
        gc.collect()
        for share, private in _read_through(Labels(kept), job.workers):
            bench.write(of, values={"private_bytes": private}, read=share, workers=job.workers)


def _read_through(dataset: Labels, workers: int) -> Any:
    """Yield (share of the dataset read, private bytes of all workers together) along one epoch."""
    size = 1000
    loader = DataLoader(
        dataset, batch_size=size, num_workers=workers,
        worker_init_fn=worker_dies_with_bench,
    )  # fmt: skip
    batches = len(loader)
    marks = {round(batches * i / READINGS) for i in range(1, READINGS + 1)}
    iterator = iter(loader)
    pids = [worker.pid for worker in iterator._workers]
    for number, _ in enumerate(iterator, 1):
        if number == 1 or number in marks:
            yield round(number / batches, 3), _private(pids)


def _private(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().uss
        except (psutil.Error, OSError):  # it has just finished its share
            continue
    return total
