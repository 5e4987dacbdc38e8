"""What `lk.watch` costs a loop of 1.4 ms steps: `python tests/benchmarks/watch_cost.py [STEPS]`.

Paired: a coin decides for every step whether its batch comes through the watch or straight from
the loader, since blocks of steps cannot resolve 1 % (A/A noise is 3-5 %). The model has one thread,
and a step's time is that thread's CPU time: where others want the core, wall time is mostly their
doing (it is printed too). The slowest 1 % of the steps are left out of both means. Only half
of the steps are recorded, so they are written half as often: as many to a write as in a real loop.
What happens twice a second (the live line, or a frame of the canvas) is timed by itself.
"""

import io
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time

os.environ.setdefault("LABKIT_HOME", tempfile.mkdtemp(prefix="labkit-watch-cost-"))

import numpy as np

from labkit.bench import watch as recording
from labkit.experiments.own_cost import STEP_MS, trainer_of
from labkit.process.events import now_ns
from labkit.show.live import LiveView
from labkit.show.watching import View, watch


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self):
        """It says it is one."""
        return True


def canvas():
    """The view of a notebook, without a kernel to send its frames to."""
    view = View()
    view.canvas = LiveView()
    return view


def measure(steps: int) -> dict[str, float]:
    """Return the step's time without a watch, ms, and the cost of the watch as shares of it."""
    trainer, images, labels = trainer_of(STEP_MS)
    recording.GATHER_NS *= 2
    plain = itertools.repeat((images, labels))
    watched = watch(plain, live=False)
    through, straight = iter(watched).__next__, plain.__next__
    coin, took, wall = random.Random(0), ([], []), ([], [])
    for _ in range(steps):
        seen = coin.random() < 0.5
        fetch = through if seen else straight
        start, start_cpu = now_ns(), time.thread_time_ns()
        batch = fetch()
        trainer.compute(*trainer.to_device(*batch), update=True)
        took[seen].append(time.thread_time_ns() - start_cpu)
        wall[seen].append(now_ns() - start)
    without, with_it = map(trimmed_ms, took)
    wall_without, wall_with = map(trimmed_ms, wall)
    # the first is what pays for opening things
    line_ms, frame_ms = (beat_ms(watched, view()) for view in (View, canvas))
    beats_a_ms = 1e6 / recording.BEAT_NS
    return {
        "step_ms": without,
        "recording_share": with_it / without - 1,
        "recording_us_95": interval(took),
        "wall_step_ms": wall_without,
        "wall_recording_share": wall_with / wall_without - 1,
        "wall_recording_us_95": interval(wall),
        "line_share": line_ms * beats_a_ms,
        "canvas_share": frame_ms * beats_a_ms,
        "line_ms": line_ms,
        "canvas_ms": frame_ms,
    }


def trimmed_ms(spent_ns: list[int]) -> float:
    """Return the mean without the slowest 1 %, ms."""
    return statistics.mean(sorted(spent_ns)[: -len(spent_ns) // 100]) / 1e6


def beat_ms(watched, view) -> float:
    """Return the mean time of a live update, in ms of this thread's CPU."""
    kept, sys.stderr, spent = sys.stderr, Terminal(), []
    try:
        for _ in range(100):
            start = time.thread_time()
            view.update(watched, over=False)
            spent.append(1e3 * (time.thread_time() - start))
    finally:
        sys.stderr = kept
    return statistics.mean(spent)


def interval(took) -> list[float]:
    """Return the 95 % bootstrap interval of the cost of a step, µs."""
    rng, costs = np.random.default_rng(0), []
    without, with_it = (np.sort(side)[: -len(side) // 100] / 1e3 for side in took)
    for _ in range(400):
        costs.append(
            rng.choice(with_it, len(with_it)).mean() - rng.choice(without, len(without)).mean()
        )
    return [round(float(edge), 2) for edge in np.percentile(costs, [2.5, 97.5])]


if __name__ == "__main__":
    print(json.dumps(measure(int((sys.argv[1:] or [10_000])[0])), indent=1))
