"""Notebook 02, sawtooth diagnosis: its challenges."""

import random

from labkit.course.task import CLOSE, Goal, KnobTask, code, faster, ratio, sized_for_a_cpu
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)
BUSY = Pipeline(
    dataset="sleep", prep_ms=10.0, num_workers=1, model="cnn", width=48, depth=6, xray=False
)

KnobTask(
    "02-feed", "the cheapest cure",
    "Feed this pipeline with at most three workers, so that it trains at least twice as fast as "
    "with none.",
    (faster(2.0), Goal("workers", lambda run, _: run.pipeline.num_workers, at_most=3)),
    ("Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
     "Twice as fast means half the step: how many workers bring the wait below that?"),
    NETWORK, NETWORK.but(num_workers=3), free=("num_workers", "prefetch_factor"),
)  # fmt: skip


@code("02-busy-share", "Two kernels at once do not make the device twice as busy.",
      "Sort the intervals; count of each only what lies beyond the end of those before.",
      error=Goal("largest error", at_most=1e-6))  # fmt: skip
class BusyShare:
    """what nvidia-smi computes.

    Write a function of (intervals, start, end) that returns the share of the window from start to
    end, 0 to 1, in which a kernel ran: at times (begin, stop) in ms, in any order, overlapping.
    """

    def solution(intervals, start, end):
        busy, until = 0, start
        for begin, stop in sorted(intervals):
            begin, stop = max(begin, until), min(stop, end)
            busy += max(0, stop - begin)
            until = max(until, stop)
        return busy / (end - start)

    def check(answer):
        rng, worst = random.Random(3), 0.0
        for _ in range(50):
            starts = [rng.randrange(0, 1000) for _ in range(rng.randrange(0, 12))]
            intervals = [(start, start + rng.randrange(1, 200)) for start in starts]
            start = rng.randrange(0, 500)
            end = start + rng.randrange(100, 500)
            busy = sum(any(a <= ms < b for a, b in intervals) for ms in range(start, end))
            worst = max(worst, abs(answer(list(intervals), start, end) - busy / (end - start)))
        return {"error": worst}


KnobTask(
    "02-less-busy", "less busy, and faster",
    "This pipeline is busy nearly all the time. Change its model so that the busy share falls to "
    "four fifths or less, and yet at least twice as many samples are trained a second.",
    (faster(2.0),
     Goal("busy share over the baseline's", ratio("utilization"), at_most=0.8, close=CLOSE)),
    ("What does the device do when it has finished a batch before the next one is ready?",
     "A model that needs less than prep_ms for a batch has to wait for the loader."),
    BUSY, BUSY.but(width=4, depth=1), sized_for_a_cpu,
    free=("model", "width", "depth"),
)  # fmt: skip
