"""What the kit costs a step of 1.4 ms: `python maintain/benchmarks/step_cost.py`.

A lot decides for every step whether it is recorded, as in a run of ours; whether its batch comes
through `lk.watch` or straight from the loader; and for every batch of a loader whether its items
are timed. The model has one thread, and a step's time is that thread's CPU time. Only half of the
watched steps are recorded, so they are written half as often: as many to a write as in a real loop.
Sampling the stack goes by the clock: it is switched on or off for half a second at a time. Blocks
of one way and then of another cannot resolve 1 %: on a noisy machine they differ by 3 to 5 %.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-step-cost-"))

import numpy as np
import torch

from labkit import Pipeline, watch
from labkit.bench import loop
from labkit.instruments import loader_hook
from labkit.instruments.loader_work import LoaderWork
from labkit.instruments.sampler import FLAG
from labkit.stamps import timeline
from labkit.stamps.events import EventLog, now_ns
from labkit.stamps.step_ring import StepRing
from labkit.watching import recorder
from labkit.watching.recorder import Recorder

STEP_MS = 1.4
STEPS = 10_000
ITEMS = 32  # in a batch of the loader whose timing is measured
STRETCH_S = 0.5  # that the sampler is on, or off


def by_lot(ways: list, times: int) -> list[np.ndarray]:
    """Do one of the `ways` `times` times, drawn by lot; return what each call of each took, ns.

    That is CPU time of this thread: where others want the core, wall time is mostly their doing.
    """
    lot = random.Random(0)
    took: list[list[int]] = [[] for _ in ways]
    for _ in range(times):
        drawn = lot.randrange(len(ways))
        start = time.thread_time_ns()
        ways[drawn]()
        took[drawn].append(time.thread_time_ns() - start)
    return [np.array(each) for each in took]


def added(plain: np.ndarray, more: np.ndarray) -> tuple[float, float]:
    """Return what the mean of `more` is above that of `plain`, and what it may be off by (95 %).

    The slowest 1 % of both are left out: what else the machine had to do.
    """
    sides = [np.sort(side)[: -len(side) // 100] for side in (plain, more)]
    variance = sum(side.var() / len(side) for side in sides)
    return sides[1].mean() - sides[0].mean(), 1.96 * variance**0.5


class Steps:
    """Steps of the default CNN on one thread, with a batch so large that one takes `STEP_MS`."""

    def __init__(self):
        torch.set_num_threads(1)
        job = SimpleNamespace(**Pipeline(width=8, depth=1).to_dict())
        self.trainer = loop.Trainer(job, torch.device("cpu"))
        image_px = 14
        took_ns = 0.0
        while took_ns < STEP_MS * 1e6:
            image_px += 2
            images = torch.randint(0, 256, (2, 3, image_px, image_px), dtype=torch.uint8)
            self.batch = images, torch.randint(0, 10, (2,))
            [times] = by_lot([self.plain], 60)
            took_ns = np.median(times[20:])

    def plain(self) -> None:
        self.train(self.batch)

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.trainer.compute(*self.trainer.to_device(*batch), update=True)

    def recorded(self, host: timeline.HostTimeline) -> None:
        asked = now_ns()
        ready = host.copying()
        batch = self.trainer.to_device(*self.batch)
        copied = host.copied()
        host.computing()
        loss = self.trainer.compute(*batch, update=True)
        host.step(timeline.Step(0, asked, ready, copied, len(self.batch[1]), loss))

    def seconds(self, sampler) -> float:
        """Train for a stretch, with the stack sampled or not; return a step's CPU time, s."""
        if sampler:
            sampler.start()
        count = 0
        start = time.thread_time()
        end = time.perf_counter() + STRETCH_S
        while time.perf_counter() < end:
            self.plain()
            count += 1
        took = time.thread_time() - start
        if sampler:
            sampler.stop()
            sampler.in_use = False
            sampler.flush()
        return took / count


def show(what: str, ways: list, times: int, parts: int = 1) -> None:
    """Print what the second of two ways costs more, as a share of the first: of each part."""
    plain, more = (each / parts / 1e3 for each in by_lot(ways, times))
    cost, off = added(plain, more)
    share = cost / plain.mean()
    print(f"{what}: {cost:.2f} µs +-{off:.2f} (95 %), {share:.2%} of {plain.mean():.0f}")


class Items:
    """Items that cost about as much as a small image does once it is decoded."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index


def fetchers(folder: Path) -> list:
    """Return what makes a batch of a loader, plain and timed as in a worker."""
    (folder / FLAG).touch()
    work = LoaderWork(EventLog(folder), -1, folder / FLAG)
    dataset = Items()
    make = torch.utils.data._DatasetKind.create_fetcher
    collate = torch.utils.data.default_collate
    plain, more = (make(0, dataset, True, collate, False) for _ in range(2))
    batch = list(range(ITEMS))
    loader_hook.install()
    return [
        lambda each=each: each.fetch(batch)
        for each in (plain, loader_hook.time_batches(more, work))
    ]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    steps = Steps()
    host = timeline.HostTimeline(StepRing(folder).add)
    show("recording a step", [steps.plain, lambda: steps.recorded(host)], STEPS)
    recorder.GATHER_NS *= 2
    through = iter(watch(itertools.repeat(steps.batch), live=False))
    show("watching a step", [steps.plain, lambda: steps.train(next(through))], STEPS)
    show("timing an item of the loader", fetchers(folder), STEPS // 10, ITEMS)
    sampler = Recorder(tempfile.mkdtemp(), []).sampler
    took = [[steps.seconds(by) for by in (None, sampler)] for _ in range(STEPS // 700)]
    plain, sampled = np.transpose(took)
    ratios = sampled / plain - 1
    off = 1.96 * ratios.std(ddof=1) / len(ratios) ** 0.5
    print(f"sampling: {ratios.mean():.2%} of a step, +-{off:.2%} (95 %)")


if __name__ == "__main__":
    main()
