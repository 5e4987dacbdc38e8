"""What `lk.watch` costs a loop of 1.4 ms steps: `python maintain/benchmarks/watch_cost.py [STEPS]`.

Paired: a coin decides for every step whether its batch comes through the watch or straight from
the loader, since blocks of steps cannot resolve 1 % (A/A noise is 3-5 %). The model has one thread,
and a step's time is that thread's CPU time: where others want the core, wall time is mostly their
doing. The slowest 1 % of the steps are left out of both means. Only half of the steps are recorded,
so they are written half as often: as many to a write as in a real loop. What happens twice a second
(the live line) is timed by itself. Sampling the stack goes by the clock: it is switched on and off
for half a second at a time, in pairs whose order a coin decides. What timing a loader's items costs
is shown by batches of which a coin lets every second one be timed.
"""

import contextlib
import io
import itertools
import json
import os
import random
import sys
import tempfile
import time

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-watch-cost-"))

from pathlib import Path

import numpy as np
import torch
from own_cost import STEP_MS, trainer_of
from paired import median_95

from labkit.bench.loader_hook import watched as watched_fetcher
from labkit.bench.loader_work import LoaderWork
from labkit.bench.sampler import WATCHED
from labkit.process.events import EventLog
from labkit.view.display import Display
from labkit.view.watch_live import watch
from labkit.watching import passes
from labkit.watching.recorder import Recorder

ITEMS = 32  # in a batch of the loader whose timing is measured


def beat_ms(watched):
    """Return the mean time of a live update, in ms of this thread's CPU."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stderr(terminal):
        watched._display, start = Display(), time.thread_time()
        for _ in range(100):
            watched._show(over=False)
        return 1e3 * (time.thread_time() - start) / 100


def loader_cost(batches):
    """Return what timing a loader's items adds to one, µs, its 95 % interval, and its share.

    An item makes a tensor of 3 x 64 x 64 numbers. A coin decides for every batch whether its
    fetcher is watched, as in a worker, with its progress written.
    """
    folder = tempfile.mkdtemp()
    Path(folder, WATCHED).touch()
    work = LoaderWork(EventLog(folder), -1, 1, folder, WATCHED)
    kinds = torch.utils.data._DatasetKind
    collate = torch.utils.data.default_collate
    fetchers = [kinds.create_fetcher(0, Noise(), True, collate, False) for _ in range(2)]
    fetchers[1] = watched_fetcher(fetchers[1], work)
    coin = random.Random(2)
    took = ([], [])
    for _ in range(batches):
        seen = coin.random() < 0.5
        start = time.thread_time_ns()
        fetchers[seen].fetch(list(range(ITEMS)))
        took[seen].append((time.thread_time_ns() - start) / ITEMS / 1e3)
    plain, timed = (np.sort(side)[: -len(side) // 100] for side in took)
    rng = np.random.default_rng(0)
    draws = [[rng.choice(side, len(side)).mean() for side in (plain, timed)] for _ in range(400)]
    interval = np.percentile(np.diff(draws, axis=1), [2.5, 97.5])
    return {
        "item_us": plain.mean(),
        "loader_us_an_item": timed.mean() - plain.mean(),
        "loader_us_95": interval.round(3).tolist(),
        "loader_share": timed.mean() / plain.mean() - 1,
    }


class Noise(torch.utils.data.Dataset):
    """Items that cost about as much as a small image does once it is decoded."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index


def sampling_share(steps):
    """Return what sampling adds to the CPU time of a step, as a share, and its 95 % interval."""
    sampler = Recorder(tempfile.mkdtemp(), []).sampler
    lot, ratios = random.Random(1), []
    for _ in range(max(2, steps // 700)):
        took = {}
        for on in lot.choice(((True, False), (False, True))):
            if on:
                sampler.start()
            count, start, end = 0, time.thread_time(), time.perf_counter() + 0.5
            while time.perf_counter() < end:
                trainer.compute(*trainer.to_device(images, labels), update=True)
                count += 1
            took[on] = (time.thread_time() - start) / count
            sampler.stop()
            sampler.in_use = False
        sampler.flush()
        ratios.append(took[True] / took[False] - 1)
    return median_95(ratios)


trainer, images, labels = trainer_of(STEP_MS)
passes.GATHER_NS *= 2
plain = itertools.repeat((images, labels))
watched = watch(plain, live=False)
fetches = plain.__next__, iter(watched).__next__
coin, took = random.Random(0), ([], [])
for _ in range(int((sys.argv[1:] or [10_000])[0])):
    seen = coin.random() < 0.5
    start = time.thread_time_ns()
    trainer.compute(*trainer.to_device(*fetches[seen]()), update=True)
    took[seen].append(time.thread_time_ns() - start)
straight, through = (np.sort(side)[: -len(side) // 100] / 1e3 for side in took)  # µs
rng, costs = np.random.default_rng(0), []
for _ in range(400):  # the bootstrap
    drawn = [rng.choice(side, len(side)).mean() for side in (straight, through)]
    costs.append(drawn[1] - drawn[0])
line_ms = beat_ms(watched)
sampling, *sampling_95 = sampling_share(int((sys.argv[1:] or [10_000])[0]))
found = {
    "step_ms": straight.mean() / 1e3,
    "recording_share": through.mean() / straight.mean() - 1,
    "recording_us_95": np.percentile(costs, [2.5, 97.5]).round(2).tolist(),
    "line_share": line_ms * 1e6 / passes.BEAT_NS, "line_ms": line_ms,
    **loader_cost(int((sys.argv[1:] or [10_000])[0]) // 10),
    "sampling_share": sampling, "sampling_share_95": sampling_95,
}  # fmt: skip
print(json.dumps(found, indent=1))
