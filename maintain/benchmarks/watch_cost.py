"""What `lk.watch` costs a loop of 1.4 ms steps: `python maintain/benchmarks/watch_cost.py [STEPS]`.

A lot decides for every step whether its batch comes through the watch or straight from the loader.
The model has one thread, and a step's time is that thread's CPU time. Only half of the steps are
recorded, so they are written half as often: as many to a write as in a real loop. Sampling the
stack goes by the clock: it is switched on and off for half a second at a time, in pairs whose order
is drawn. What timing a loader's items costs is shown by batches of which every second one, drawn
by lot, is timed.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
import time

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-watch-cost-"))

from pathlib import Path

import torch
from own_cost import STEP_MS, trainer_of
from paired import added, by_lot, median_95

from labkit.bench.loader_hook import timed as timed_fetcher
from labkit.bench.loader_work import LoaderWork
from labkit.bench.sampler import FLAG
from labkit.process.events import EventLog
from labkit.view.watch_live import watch
from labkit.watching import passes
from labkit.watching.recorder import Recorder

STEPS = 10_000
ITEMS = 32  # in a batch of the loader whose timing is measured
STRETCH_S = 0.5  # that the sampler is on, or off


class Noise(torch.utils.data.Dataset):
    """Items that cost about as much as a small image does once it is decoded."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index


def show(what: str, plain_us: float, cost_us: float, interval_us: list[float]) -> None:
    """Print a cost beside what it is a cost of."""
    low, high = interval_us
    print(
        f"{what}: {cost_us:.2f} µs (95 %: {low:.2f} to {high:.2f}), "
        f"{cost_us / plain_us:.2%} of {plain_us:.0f} µs",
        flush=True,
    )


def recording_cost(steps: int) -> None:
    """Print what a step costs more where its batch comes through the watch."""
    passes.GATHER_NS *= 2
    straight = itertools.repeat((images, labels))
    through = iter(watch(straight, live=False))
    ways = [lambda: train_on(next(straight)), lambda: train_on(next(through))]
    plain, watched = by_lot(ways, steps)
    cost, interval = added(plain / 1e3, watched / 1e3)
    show("recording a step", plain.mean() / 1e3, cost, interval)


def loader_cost(batches: int) -> None:
    """Print what timing a loader's items adds to one.

    A batch's fetcher is watched as in a worker, with its progress written.
    """
    folder = Path(tempfile.mkdtemp())
    while_there = folder / FLAG
    while_there.touch()
    work = LoaderWork(EventLog(folder), -1, 1, while_there)
    make = torch.utils.data._DatasetKind.create_fetcher
    collate = torch.utils.data.default_collate
    plain = make(0, Noise(), True, collate, False)
    timed = timed_fetcher(make(0, Noise(), True, collate, False), work)
    batch = list(range(ITEMS))
    ways = [lambda: plain.fetch(batch), lambda: timed.fetch(batch)]
    items_us = [each / ITEMS / 1e3 for each in by_lot(ways, batches)]
    show("timing an item of the loader", items_us[0].mean(), *added(*items_us))


def seconds_a_step() -> float:
    """Train for a stretch; return the CPU time of a step, s."""
    count = 0
    start = time.thread_time()
    end = time.perf_counter() + STRETCH_S
    while time.perf_counter() < end:
        train_on((images, labels))
        count += 1
    return (time.thread_time() - start) / count


def sampling_cost(pairs: int) -> None:
    """Print what sampling the stack adds to the CPU time of a step."""
    sampler = Recorder(tempfile.mkdtemp(), []).probes.sampler
    lot = random.Random(1)
    ratios = []
    for _ in range(pairs):
        took = {}
        for on in lot.sample([True, False], 2):
            if on:
                sampler.start()
            took[on] = seconds_a_step()
            sampler.stop()
            sampler.in_use = False
        sampler.flush()
        ratios.append(took[True] / took[False] - 1)
    print("sampling: {:.2%} of a step (95 %: {:.2%} to {:.2%})".format(*median_95(ratios)))


def train_on(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    trainer.compute(*trainer.to_device(*batch), update=True)


if __name__ == "__main__":
    trainer, images, labels = trainer_of(STEP_MS)
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    recording_cost(asked)
    loader_cost(asked // 10)
    sampling_cost(max(2, asked // 700))
