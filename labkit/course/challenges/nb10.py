"""The challenge of notebook 10, read a trace."""

from __future__ import annotations

import random

from labkit.course.challenge import Answer
from labkit.course.checking import ALL_RIGHT, share_right
from labkit.course.code_challenge import Numbers, code
from labkit.results.shipped import entries
from labkit.traces.public import LANES_FILE

Spans = list[tuple[float, float]]

ROUNDS = 30
STARVED = ("v100-workers-0", "rtx2080ti-sawtooth")
ACTIVITIES = ("DataLoader", "CPU operators", "CUDA calls")


def excerpt(name: str) -> dict[str, Spans]:
    """Return the lanes of a stored excerpt of a real trace."""
    lanes = entries(LANES_FILE)[name]
    return {lane: [*map(tuple, spans)] for lane, spans in lanes.items() if lane != "steps"}


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
    goals=(ALL_RIGHT,),
    example=largest_gap,
)
def gap(answer: Answer) -> Numbers:
    """The largest gap, and its cause.

    Write a function of lanes, {name of a lane: [(start, end), ...]} in ms, each lane sorted and
    without overlap. It returns two values: how long the largest gap between two "kernels" is, and
    which of "DataLoader", "CPU operators" and "CUDA calls" is active longest in it. A lane may be
    missing.
    """
    cases = [excerpt(name) for name in STARVED] + [lanes_with_a_gap() for _ in range(ROUNDS)]
    return share_right(answer, largest_gap, [(lanes,) for lanes in cases])


def lanes_with_a_gap() -> dict[str, Spans]:
    """Return lanes with a gap of more than 100 ms, in which the third activity is the longest."""
    begin = random.randrange(1, 40)
    end = begin + random.randrange(100, 140)
    first, second, third = random.sample(ACTIVITIES, 3)
    return {
        "kernels": [(0, begin), (end, end + 30), (end + 40, end + 60)],
        first: [(begin, begin + 15), (end + 60, end + 360)],  # long, but after the gap
        second: [(begin + 15, begin + 35)],
        third: [(begin + 35, begin + 95)],
    }
