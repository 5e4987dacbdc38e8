"""Notebook 02, sawtooth diagnosis: its challenges."""

import random

from labkit.course.task import CLOSE, Goal, code, faster, knobs, ratio, sized_for_a_cpu
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)
BUSY = Pipeline(
    dataset="sleep", prep_ms=10.0, num_workers=1, model="cnn", width=48, depth=6, xray=False
)

knobs(
    "02-feed",
    "the cheapest cure",
    "Feed this pipeline with at most three workers, so that it trains at least twice as fast as "
    "with none.",
    faster(2.0),
    Goal("workers", lambda run, _: run.pipeline.num_workers, at_most=3),
    hints=(
        "Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
        "Twice as fast means half the step: how many workers bring the wait below that?",
    ),
    base=NETWORK, free=("num_workers", "prefetch_factor"), solution=NETWORK.but(num_workers=3),
)  # fmt: skip


def merged(intervals, start, end):
    """The union of the intervals, cut to the window, over its length."""
    busy, until = 0, start
    for begin, stop in sorted(intervals):
        begin, stop = max(begin, until), min(stop, end)
        busy += max(0, stop - begin)
        until = max(until, stop)
    return busy / (end - start)


@code(
    "02-busy-share",
    "Two kernels at once do not make the device twice as busy.",
    "Sort the intervals; count of each only what lies beyond the end of those before.",
    solution=merged, error=Goal("largest error", at_most=1e-6),
)  # fmt: skip
def busy_share(answer, _torch):
    """what nvidia-smi computes.

    Write a function of (intervals, start, end): intervals is a list of (begin, stop) in ms during
    which kernels ran, in any order and overlapping at times. Return the share of the window from
    start to end in which at least one ran, 0 to 1.
    """
    rng, worst = random.Random(3), 0.0
    for _ in range(50):
        starts = [rng.randrange(0, 1000) for _ in range(rng.randrange(0, 12))]
        intervals = [(start, start + rng.randrange(1, 200)) for start in starts]
        start = rng.randrange(0, 500)
        end = start + rng.randrange(100, 500)
        busy = sum(any(a <= ms < b for a, b in intervals) for ms in range(start, end))
        worst = max(worst, abs(answer(list(intervals), start, end) - busy / (end - start)))
    return {"error": worst}


knobs(
    "02-less-busy",
    "less busy, and faster",
    "This pipeline is busy nearly all the time. Change its model so that the busy share falls to "
    "four fifths or less, and yet at least twice as many samples are trained a second. You will "
    "not quote utilization as a measure of speed again.",
    faster(2.0),
    Goal("busy share over the baseline's", ratio("utilization"), at_most=0.8, close=CLOSE),
    hints=(
        "What does the device do when it has finished a batch before the next one is ready?",
        "A model that needs less than prep_ms for a batch has to wait for the loader.",
    ),
    base=BUSY, free=("model", "width", "depth"), tolerance=None, needs=sized_for_a_cpu,
    solution=BUSY.but(width=4, depth=1),
)  # fmt: skip
