"""The challenges of notebook 02, sawtooth diagnosis."""

from __future__ import annotations

import random
from collections.abc import Sequence

from labkit.course.challenge import Answer
from labkit.course.challenges.nb00 import NETWORK
from labkit.course.checking import EXACT, largest_error
from labkit.course.code_challenge import Numbers, code
from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge, faster, speedup
from labkit.results.run import Run
from labkit.spec import Pipeline


def workers(run: Run, _baseline: Run | None) -> float:
    """Return how many loader workers a run has."""
    return run.pipeline.to_dict()["num_workers"]


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
    goals={faster(1.7): speedup, Goal("workers", at_most=3): workers},
)


# Its model is sized for a CPU: a GPU would always wait for its data
BUSY = Pipeline(
    dataset="sleep", prep_ms=10.0, num_workers=1, width=48, depth=6, xray=False, device="cpu"
)


def busy_ratio(run: Run, baseline: Run | None) -> float | None:
    """Return the busy share over the baseline's; None where one is not known."""
    before = baseline.utilization if baseline else None
    return run.utilization / before if run.utilization and before else None


BUSY_SHARE = Goal("busy share over the baseline's", at_most=0.8, close=0.1, needs_baseline=True)
LESS_BUSY = KnobChallenge(
    key="02-less-busy",
    title="Less busy, and faster",
    text="This pipeline is busy nearly all the time. Change its model so that the busy share falls "
    "to four fifths or less of what it is now, and yet at least twice as many samples are trained "
    "a second.",
    hints=(
        "What does the device do when it has finished a batch before the next one is ready?",
        "A model that needs less than prep_ms for a batch has to wait for the loader.",
    ),
    start=BUSY,
    example=BUSY.but(width=4, depth=1),
    free=("model", "width", "depth"),
    goals={faster(2.0): speedup, BUSY_SHARE: busy_ratio},
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
    goals=(EXACT,),
    example=share_of_window,
)
def busy_share(answer: Answer) -> Numbers:
    """What nvidia-smi computes.

    Write a function of (intervals, start, end) that returns the share of the window from start to
    end, 0 to 1, in which a kernel ran. intervals is a list of (begin, stop) in ms, in any order,
    and they may overlap.
    """
    generator = random.Random(3)
    cases = []
    for _ in range(50):
        begins = [generator.randrange(0, 1000) for _ in range(generator.randrange(0, 12))]
        intervals = [(begin, begin + generator.randrange(1, 200)) for begin in begins]
        start = generator.randrange(0, 500)
        asked = (intervals, start, start + generator.randrange(100, 500))
        cases.append((asked, share_of_window(*asked)))
    return largest_error(answer, cases)
