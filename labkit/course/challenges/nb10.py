"""The challenges of notebook 10, read a trace."""

from __future__ import annotations

import itertools
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

    known = [name for name in ("DataLoader", "CPU operators", "CUDA calls") if name in lanes]
    return stop - begin, max(known, key=active)


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
    generator = random.Random(10)
    cases = [excerpt(name) for name in STARVED]
    cases += [lanes_with_a_gap(generator) for _ in range(ROUNDS)]

    def in_ns(found: tuple[float, str]) -> tuple[int, str]:
        return round(found[0] * 1e6), found[1]

    right = [((lanes,), in_ns(largest_gap(lanes))) for lanes in cases]
    return share_right(lambda lanes: in_ns(answer(lanes)), right)


def lanes_with_a_gap(generator: random.Random) -> dict[str, Spans]:
    """Return lanes with a gap of more than 100 ms, in which the third activity is the longest."""
    ends = list(itertools.accumulate(generator.randrange(1, 40) for _ in range(18)))
    spans: Spans = list(zip(ends[::2], ends[1::2], strict=True))
    place = generator.randrange(1, 9)
    kernels = spans[:place] + [(start + 100, end + 100) for start, end in spans[place:]]
    begin = spans[place - 1][1]
    first, second, third = generator.sample(ACTIVITIES, 3)
    return {
        "kernels": kernels,
        first: [(begin, begin + 15), (begin + 195, begin + 495)],  # long, but after the gap
        second: [(begin + 15, begin + 35)],
        third: [(begin + 35, begin + 95)],
    }


def least_inside(collectives: dict[int, Spans]) -> int:
    """Return the rank that spends the least time in collectives."""

    def inside(rank: int) -> float:
        return sum(end - start for start, end in collectives[rank])

    return min(collectives, key=inside)


@code(
    "10-straggler",
    hints=(
        "A collective ends for all at once, when the last rank has come. Who waits longest in it?",
        "The rank that comes last spends the least time in collectives.",
    ),
    goals=(ALL_RIGHT,),
    example=least_inside,
)
def straggler(answer: Answer) -> Numbers:
    """The late rank.

    Write a function of collectives, {rank: [(start, end), ...]} in ms: when each rank was in each
    of the same collectives. It returns the rank that the others wait for.
    """
    generator = random.Random(13)
    lates = [generator.randrange(8) for _ in range(ROUNDS)]
    return share_right(answer, [((collectives_with(generator, late),), late) for late in lates])


def collectives_with(generator: random.Random, late: int) -> dict[int, Spans]:
    """Return when eight ranks were in ten collectives, most of which one rank entered last."""
    spans: dict[int, Spans] = {rank: [] for rank in range(8)}
    for number in range(10):
        usual = 100 * number + 30
        end = usual + 40
        for rank in spans:
            own_late = rank == late and number not in (0, 9)  # the first and last tell nothing
            start = end - 5 if own_late else usual + generator.uniform(0, 20)
            spans[rank].append((start, end))
    return spans
