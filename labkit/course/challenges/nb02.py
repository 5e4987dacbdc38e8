"""The challenges of notebook 02, sawtooth diagnosis."""

from __future__ import annotations

import random
from collections.abc import Sequence

from labkit.course.challenge import Answer
from labkit.course.challenges.nb00 import NETWORK
from labkit.course.checking import ALL_RIGHT, share_right
from labkit.course.code_challenge import Numbers, code
from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge, faster

FEED = KnobChallenge(
    key="02-feed",
    title="The cheapest cure",
    text="Feed this pipeline with at most three workers, so that it trains at least 1.7 times as "
    "fast as with none.",
    hints=(
        "Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
        "1.7 times as fast means 0.59 of the step: how many workers bring the wait below that?",
    ),
    start=NETWORK,
    example=NETWORK.but(num_workers=3),
    free=("num_workers", "prefetch_factor"),
    goals=faster(1.7) | {Goal("workers", at_most=3): lambda run, _: run.pipeline.num_workers},
)


def share_of_window(intervals: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Return the share of a window that intervals cover, each moment counted once."""
    busy = 0.0
    covered_until = start
    for begin, stop in sorted(intervals):
        begin = max(begin, covered_until)
        stop = min(stop, end)
        busy += max(0, stop - begin)
        covered_until = max(covered_until, stop)
    return busy / (end - start)


@code(
    "02-busy-share",
    hints=(
        "Two kernels at once do not make the device twice as busy.",
        "Sort the intervals; count of each only what lies beyond the end of those before it.",
    ),
    goals=(ALL_RIGHT,),
    example=share_of_window,
)
def busy_share(answer: Answer) -> Numbers:
    """What nvidia-smi computes.

    Write a function of (intervals, start, end) that returns the share of the window from start to
    end, 0 to 1, in which a kernel ran. intervals is a list of (begin, stop) in ms, in any order,
    and they may overlap.
    """
    cases = []
    for count in range(50):
        begins = random.choices(range(1000), k=count % 12)
        intervals = [(begin, begin + random.randrange(1, 200)) for begin in begins]
        start = random.randrange(0, 500)
        cases.append((intervals, start, start + random.randrange(100, 500)))
    return share_right(answer, share_of_window, cases)
