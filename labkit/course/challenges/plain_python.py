"""The challenges that are answered with a function of plain Python."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping

from labkit.course.challenge import Answer, Goal, code
from labkit.results.templates import entries
from labkit.traces.public import STORED_FILE

ERROR = "largest error"
RIGHT = "share of right answers"
ALL_RIGHT = Goal(RIGHT, at_least=1.0)

# -- 01 GPU anatomy --------------------------------------------------------------------------------

TIMED = 20  # calls


class SimulatedDevice:
    """A device whose calls return at once, and whose first call is slow."""

    def __init__(self, each_ms: float):
        self.now_ms = 0.0
        self.free_at_ms = 300.0
        self.each_ms = each_ms
        self.calls = 0

    def work(self) -> None:
        """Start a call, which takes the caller 0.02 ms."""
        self.now_ms += 0.02
        self.free_at_ms = max(self.free_at_ms, self.now_ms) + self.each_ms
        self.calls += 1

    def wait(self) -> None:
        """Return when all calls are done."""
        self.now_ms = max(self.now_ms, self.free_at_ms)

    def clock(self) -> float:
        """Return the time in ms."""
        return self.now_ms


def ms_per_call(
    work: Callable[[], None], wait: Callable[[], None], clock: Callable[[], float]
) -> float:
    """Return what a call takes on the device, without the set-up of the first one."""
    work()
    wait()
    start = clock()
    for _ in range(TIMED):
        work()
    wait()
    return (clock() - start) / TIMED


@code(
    "01-stopwatch",
    hints=(
        "What does clock() - start measure while the device is still at work?",
        "One call and one wait() before the clock starts; one wait() before it stops.",
    ),
    goals=(Goal(ERROR, at_most=0.02), Goal("calls", at_least=10)),
    example=ms_per_call,
)
def stopwatch(answer: Answer) -> Mapping[str, float]:
    """An honest stopwatch.

    A device's work() returns at once, its wait() when all work is done, and the very first call is
    slow. Write a function of (work, wait, clock) that returns the milliseconds that one call takes,
    from at least ten calls. clock() returns the time in ms.
    """
    devices = [SimulatedDevice(random.uniform(1, 20)) for _ in range(6)]
    errors = [
        abs(answer(device.work, device.wait, device.clock) / device.each_ms - 1)
        for device in devices
    ]
    return {ERROR: max(errors), "calls": min(device.calls for device in devices)}


# -- 10 Read a trace -------------------------------------------------------------------------------

Spans = list[tuple[float, float]]

EXCERPTS = ("v100-workers-0", "v100-workers-4", "rtx2080ti-sawtooth", "a100-ddp-rank0")
ACTIVITIES = ("DataLoader", "CPU operators", "CUDA calls")


def largest_gap(lanes: dict[str, Spans]) -> tuple[float, str]:
    """Return the length of the largest gap between kernels, ms, and the lane active in it."""
    kernels = lanes["kernels"]
    gaps = [(kernels[i][1], kernels[i + 1][0]) for i in range(len(kernels) - 1)]
    begin, stop = max(gaps, key=lambda gap: gap[1] - gap[0])

    def active(lane: str) -> float:
        return sum(max(0, min(end, stop) - max(start, begin)) for start, end in lanes[lane])

    return stop - begin, max((name for name in ACTIVITIES if name in lanes), key=active)


@code(
    "10-gap",
    hints=(
        "Between kernels i and i + 1 lies the gap from the end of i to the start of i + 1.",
        "How long is a span inside the gap? min(ends) - max(starts), if that is above 0.",
    ),
    goals=(Goal(ERROR, at_most=0.001), ALL_RIGHT),
    example=largest_gap,
)
def gap(answer: Answer) -> Mapping[str, float]:
    """The largest gap, and its cause.

    Write a function of lanes, {name of a lane: [(start, end), ...]} in ms, each lane sorted and
    without overlap. It returns two values: how long the largest gap between two "kernels" is, and
    which of "DataLoader", "CPU operators" and "CUDA calls" is active longest in it. A lane may be
    missing.
    """
    errors = []
    right = []
    for name in EXCERPTS:
        lanes = entries(STORED_FILE)[name][0]["lanes"]
        length_ms, active = largest_gap(lanes)
        found_ms, found = answer(copy.deepcopy(lanes))
        errors.append(abs(found_ms - length_ms))
        right.append(found == active)
    return {ERROR: max(errors), RIGHT: sum(right) / len(right)}


# -- 11 Which data path ----------------------------------------------------------------------------

ROUNDS = 30

Paths = dict[str, tuple[float, int]]  # ms of CPU and bytes of an image


def smallest_that_feeds(paths: Paths, cores: int, images_per_s: float) -> str | None:
    """Return the path of fewest bytes of those that are fast enough; None where none is."""
    fed = [name for name, (ms, _) in paths.items() if cores * 1000 / ms >= images_per_s]
    return min(fed, key=lambda name: paths[name][1], default=None)


@code(
    "11-choose",
    hints=(
        "cores * 1000 / ms images per second: a path feeds the device if that is enough.",
        "Of those that do, the one with the fewest bytes; of an empty list, min has a default.",
    ),
    goals=(ALL_RIGHT,),
    example=smallest_that_feeds,
)
def choose(answer: Answer) -> Mapping[str, float]:
    """The smallest that feeds the device.

    Write a function of (paths, cores, images_per_s), where paths is {name: (ms of CPU per image,
    bytes per image)}. It returns the name of the path that takes the fewest bytes of those that
    feed the device, or None if none does.
    """
    right = 0
    for _ in range(ROUNDS):
        names = random.sample(["PIL", "draft", "tar", "Parquet", "array"], 4)
        paths = {name: (random.uniform(0.1, 8), random.randrange(10**4, 10**6)) for name in names}
        asked = random.choice((1, 2, 4, 16)), random.choice((300, 5_000, 20_000))
        right += answer(dict(paths), *asked) == smallest_that_feeds(paths, *asked)
    return {RIGHT: right / ROUNDS}
