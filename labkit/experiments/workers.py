"""Loader workers: what each one's copy of the dataset costs, and what an epoch costs to begin."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import numpy as np

from labkit.experiments.measure import bars, page, primitives, style
from labkit.spec import experiment, knob
from labkit.wiring import Later

torch, torch_data = Later("torch"), Later("torch.utils.data")
process, psutil = Later("labkit.bench.process"), Later("psutil")

READINGS, BATCH = 6, 1000


class Labels:
    """A dataset of labels or file names, kept in one way or another."""

    def __init__(self, kept: Any):
        self.kept = kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> int:
        return hash(self.kept[index]) & 1


@experiment(
    "the workers' private memory while they read a list, and an array",
    items=knob(300_000, "names in the dataset", low=BATCH, high=1 << 26),
    workers=knob(2, "loader processes", low=1, high=128),
)
def worker_memory(job: Any, bench: Any) -> None:
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
    for of, kept in {"list of Python objects": names, "one array": np.array(names)}.items():
        bench.stage(f"measuring: {of}")
        gc.collect()
        loader = torch_data.DataLoader(
            Labels(kept), batch_size=BATCH, num_workers=job.workers,
            worker_init_fn=process.worker_dies_with_bench,
        )  # fmt: skip
        marks = {1, *(round(len(loader) * i / READINGS) for i in range(1, READINGS + 1))}
        iterator = iter(loader)
        pids = [worker.pid for worker in iterator._workers]
        for number, _ in enumerate(iterator, 1):
            if number in marks:
                values = {"private_bytes": sum(map(_private, pids))}
                read = round(number / len(loader), 3)
                bench.write(of, values=values, read=read, workers=job.workers)


def _private(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_full_info().uss
    except (psutil.Error, OSError):  # it has just finished its share
        return 0


@worker_memory.figure
def draw_memory(measured: Any) -> Any:
    """Draw private memory of all workers together (MiB) against the share of the data read."""
    series, ends = [], []
    for kind, colour in zip(dict.fromkeys(p.of for p in measured), style.LINES, strict=False):
        points = measured.where(kind)
        mib = [point.values["private_bytes"] / 2**20 for point in points]
        series.append(primitives.Series(kind, [p.case["read"] for p in points], mib, colour))
        ends.append(f"{kind}: {mib[-1]:,.0f} MiB")
    title = f"private memory when all is read: {', '.join(ends)}"
    figure, (axes,) = page(measured, [(0.32, 2.2)], title=title)
    primitives.lines(axes, series, "share of the dataset read in this epoch", "private memory, MiB")
    axes.set_xlim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return figure


@experiment(
    "from asking for an epoch to its first batch",
    workers=knob(4, "loader processes", low=1, high=128),
    epochs=knob(5, "epochs that are begun", low=2, high=1000),
)
def epoch_start(job: Any, bench: Any) -> None:
    """Time from asking for an epoch to its first batch, for `epochs` epochs.

    With `persistent_workers` the processes of the first epoch go on; without, every epoch starts
    its own, which on Windows and macOS import everything again. The first epoch is left out of
    "later epochs" either way.
    """
    data = torch_data.TensorDataset(torch.randn(64 * 8, 16))  # (512, 16)
    for persistent in (False, True):
        of = "persistent workers" if persistent else "new workers each epoch"
        loader = torch_data.DataLoader(
            data, batch_size=64, num_workers=job.workers, persistent_workers=persistent,
            worker_init_fn=process.worker_dies_with_bench,
        )  # fmt: skip
        took = []
        for epoch in range(job.epochs):
            bench.stage(f"measuring: {of}", epoch, job.epochs)
            start = time.perf_counter()
            iterator = iter(loader)
            next(iterator)
            took.append(time.perf_counter() - start)
            for _ in iterator:
                pass
        bench.write(of, seconds=took[:1], epochs="first")
        bench.write(of, seconds=sorted(took[1:]), epochs="later")
        del iterator, loader


@epoch_start.figure
def draw_starts(measured: Any, before: Any = None) -> Any:
    """Draw the time of the first epoch and of later ones, each way."""
    later = {point.of: point.median_s for point in measured.where(epochs="later")}
    kept, new = later.get("persistent workers"), later.get("new workers each epoch")
    title = f"kept workers begin an epoch {new / kept:,.0f}x as fast" if kept and new else ""
    return bars(measured, before, title)
