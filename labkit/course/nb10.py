"""The challenges of notebook 10."""

import random

from labkit.course.task import Goal, code
from labkit.diagnosis.public_traces import LANES_FILE
from labkit.results.shipped import entries

Spans = list[tuple[float, float]]
ROUNDS = 30
ALL_RIGHT = Goal("share of right answers", at_least=1.0)
EXACT = Goal("largest error, ms", at_most=1e-6)
STARVED = ("v100-workers-0", "rtx2080ti-sawtooth")
NOT_STARVED = ("v100-workers-4", "rtx2080ti-launch-bound", "v100-busy-fp32", "h100-batch-1")
ACTIVITIES = ("DataLoader", "CPU operators", "CUDA calls")


def excerpt(name: str, later_ms: float = 0.0) -> dict[str, Spans]:
    """Return the lanes of a stored excerpt of a real trace, so much later."""
    lanes = entries(LANES_FILE)[name]
    return {
        lane: [(start + later_ms, end + later_ms) for start, end in spans]
        for lane, spans in lanes.items()
        if lane != "steps"
    }


def random_spans(rng: random.Random, count: int, longest: int) -> Spans:
    """Return stretches of whole ms, sorted and without overlap."""
    spans = []
    time = 0
    for _ in range(count):
        start = time + rng.randrange(1, longest)
        time = start + rng.randrange(1, longest)
        spans.append((start, time))
    return spans


@code("10-gap",
      "Between kernels i and i + 1 lies the gap from the end of i to the start of i + 1.",
      "How long is a span inside the gap? min(ends) - max(starts), if that is above 0.",
      error=EXACT, right=ALL_RIGHT)  # fmt: skip
class Gap:
    """the largest gap, and its cause.

    Write a function of lanes, {name of a lane: [(start, end), ...]} in ms, each lane sorted and
    without overlap. It returns two values: how long the largest gap between two "kernels" is, and
    which of "DataLoader", "CPU operators" and "CUDA calls" is active longest in it. A lane may be
    missing.
    """

    def solution(lanes):
        kernels = lanes["kernels"]
        gaps = [(kernels[i][1], kernels[i + 1][0]) for i in range(len(kernels) - 1)]
        begin, stop = max(gaps, key=lambda gap: gap[1] - gap[0])

        def active(lane):
            return sum(max(0, min(end, stop) - max(start, begin)) for start, end in lanes[lane])

        known = [name for name in ("DataLoader", "CPU operators", "CUDA calls") if name in lanes]
        return stop - begin, max(known, key=active)

    def check(answer):
        rng = random.Random(10)
        cases = [(excerpt(name), None) for name in STARVED]
        for _ in range(ROUNDS):
            kernels = random_spans(rng, 9, 40)
            place = rng.randrange(8)
            later = [(start + 100, end + 100) for start, end in kernels[place + 1 :]]
            kernels = kernels[: place + 1] + later  # one gap is the largest
            begin = kernels[place][1]
            parts = [begin, begin + 15, begin + 35, begin + 95]
            names = rng.sample(ACTIVITIES, 3)
            lanes = {name: [(parts[i], parts[i + 1])] for i, name in enumerate(names)}
            lanes[names[0]] += [(parts[3] + 100, parts[3] + 400)]  # long, but after it
            cases.append((lanes | {"kernels": kernels}, names[2]))
        errors = []
        right = 0
        for lanes, cause in cases:
            gap, lane = answer({name: list(spans) for name, spans in lanes.items()})
            true_gap, true_lane = Gap.solution(lanes)
            errors.append(abs(gap - true_gap))
            right += lane == (cause or true_lane)
        return {"error": max(errors), "right": right / len(cases)}


@code("10-starved",
      "A device that computes little is not yet starved: what does the host do meanwhile?",
      "Take the share of the window in which the lane \"DataLoader\" is active.",
      right=ALL_RIGHT)  # fmt: skip
class Starved:
    """the starved one of four.

    Write a function of four excerpts of traces of real GPUs, a list of {lane: [(start, end), ...]}
    in ms. It returns the number, 0 to 3, of the one whose device waits for its DataLoader. A lane
    in which nothing happens is missing.
    """

    def solution(traces):
        def waits(lanes):
            end = max(spans[-1][1] for spans in lanes.values())
            start = min(spans[0][0] for spans in lanes.values())
            return sum(b - a for a, b in lanes.get("DataLoader", [])) / (end - start)

        return max(range(4), key=lambda number: waits(traces[number]))

    def check(answer):
        rng = random.Random(11)
        right = 0
        for _ in range(ROUNDS):
            starved = rng.choice(STARVED)
            names = [starved, *rng.sample(NOT_STARVED, 3)]
            rng.shuffle(names)
            traces = [excerpt(name, later_ms=rng.randrange(1000)) for name in names]
            right += answer(traces) == names.index(starved)
        return {"right": right / ROUNDS}


def without(spans: Spans, others: Spans) -> float:
    """Return the ms of some spans, given in whole ms, that no other covers."""
    covered = {ms for start, end in others for ms in range(int(start), int(end))}
    return len({ms for start, end in spans for ms in range(int(start), int(end))} - covered)


@code("10-exposed",
      "The time of the collectives, less the time in which a kernel runs beside them.",
      "Two spans share min(ends) - max(starts), if that is above 0.",
      error=EXACT)  # fmt: skip
class Exposed:
    """communication that nothing hides.

    Write a function of (kernels, collectives), two lists of (start, end) in ms, each sorted and
    without overlap. It returns the ms in which a collective runs and no kernel.
    """

    def solution(kernels, collectives):
        exposed = 0
        for start, end in collectives:
            beside = [min(end, stop) - max(start, begin) for begin, stop in kernels]
            exposed += end - start - sum(shared for shared in beside if shared > 0)
        return exposed

    def check(answer):
        rng = random.Random(12)
        errors = []
        for _ in range(ROUNDS):
            kernels = random_spans(rng, 12, 30)
            collectives = random_spans(rng, 6, 60)
            found = answer(list(kernels), list(collectives))
            errors.append(abs(found - without(collectives, kernels)))
        return {"error": max(errors)}


@code("10-straggler",
      "A collective ends for all at once, when the last rank has come. Who waits longest in it?",
      "The rank that comes last spends the least time in collectives.",
      right=ALL_RIGHT)  # fmt: skip
class Straggler:
    """the late rank.

    Write a function of collectives, {rank: [(start, end), ...]} in ms: when each rank was in each
    of the same collectives. It returns the rank that the others wait for.
    """

    def solution(collectives):
        def inside(rank):
            return sum(end - start for start, end in collectives[rank])

        return min(collectives, key=inside)

    def check(answer):
        rng = random.Random(13)
        right = 0
        for _ in range(ROUNDS):
            late = rng.randrange(8)
            spans = late_in(rng, late)
            right += answer(spans) == late
        return {"right": right / ROUNDS}


def late_in(rng: random.Random, late: int) -> dict[int, Spans]:
    """Return when eight ranks were in ten collectives, most of which one rank entered last."""
    spans: dict[int, Spans] = {rank: [] for rank in range(8)}
    for number in range(10):
        usual = 100 * number + 30
        end = usual + 40
        for rank in spans:
            own_late = rank == late and number not in (0, 9)  # the first and last tell nothing
            start = end - 5 if own_late else usual + rng.uniform(0, 20)
            spans[rank].append((start, end))
    return spans
