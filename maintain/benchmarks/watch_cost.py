"""What `lk.watch` costs a loop of 1.4 ms steps: `python maintain/benchmarks/watch_cost.py [STEPS]`.

Paired: a coin decides for every step whether its batch comes through the watch or straight from
the loader, since blocks of steps cannot resolve 1 % (A/A noise is 3-5 %). The model has one thread,
and a step's time is that thread's CPU time: where others want the core, wall time is mostly their
doing. The slowest 1 % of the steps are left out of both means. Only half of the steps are recorded,
so they are written half as often: as many to a write as in a real loop. What happens twice a second
(the live line) is timed by itself. Sampling the stack goes by the clock: it is switched on and off
for half a second at a time, in pairs whose order a coin decides.
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

import numpy as np
from own_cost import STEP_MS, trainer_of
from paired import median_95

from labkit.view.display import Display
from labkit.view.watch_live import watch
from labkit.watching import recorder as recording
from labkit.watching.recorder import Recorder


def beat_ms(watched):
    """Return the mean time of a live update, in ms of this thread's CPU."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stderr(terminal):
        watched._display, start = Display(), time.thread_time()
        for _ in range(100):
            watched._show(over=False)
        return 1e3 * (time.thread_time() - start) / 100


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
recording.GATHER_NS *= 2
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
    "line_share": line_ms * 1e6 / recording.BEAT_NS, "line_ms": line_ms,
    "sampling_share": sampling, "sampling_share_95": sampling_95,
}  # fmt: skip
print(json.dumps(found, indent=1))
