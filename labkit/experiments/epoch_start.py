"""What an epoch costs to begin: workers started anew, or kept."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from labkit.bench.process import worker_dies_with_bench
from labkit.bench.workbench import Workbench
from labkit.process.events import now_ns


def measure(job: Any, bench: Workbench) -> None:
    """Time from asking for an epoch to its first batch, for `epochs` epochs.

    With `persistent_workers` the processes of the first epoch go on; without, every epoch starts
    its own, which on Windows and macOS import everything again. The first epoch is left out of
    "later epochs" either way.
    """
    data = TensorDataset(torch.randn(64 * 8, 16))  # (512, 16)
    for persistent in (False, True):
        of = "persistent workers" if persistent else "new workers each epoch"
        loader = DataLoader(
            data, batch_size=64, num_workers=job.workers, persistent_workers=persistent,
            worker_init_fn=worker_dies_with_bench,
        )  # fmt: skip
        took = []
        for epoch in range(job.epochs):
            bench.stage(f"measuring: {of}", epoch, job.epochs)
            start = now_ns()
            iterator = iter(loader)
            next(iterator)
            took.append((now_ns() - start) / 1e9)
            for _ in iterator:
                pass
        bench.write(of, seconds=took[:1], epochs="first")
        bench.write(of, seconds=sorted(took[1:]), epochs="later")
        del iterator, loader
