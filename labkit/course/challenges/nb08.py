"""The challenges of notebook 08, the capstone."""

from __future__ import annotations

import random

from labkit.course.challenge import Answer
from labkit.course.checking import ALL_RIGHT, share_right
from labkit.course.code_challenge import Numbers, code
from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge, faster, speedup
from labkit.course.slow_script import SlowScript
from labkit.results.run import Run


def fixes_made(run: Run, _baseline: Run | None) -> float:
    """Return how many fixes a run of the slow script has."""
    return len((run.event("spec") or {})["script"]["fixes"])


TWO_FIXES = KnobChallenge(
    key="08-two-fixes",
    title="Two fixes, 1.7 times as fast",
    text="Choose only two fixes that make the slow script at least 1.7 times as fast. Answer with "
    "{'fixes': ['...', '...']}, of data, items, copies, launches, precision and memory.",
    hints=(
        "What was on top of the very first diagnosis?",
        "And what was there when that was fixed?",
    ),
    start=SlowScript(),
    example=SlowScript(("items", "copies")),  # on a GPU "data" and "items" are not enough
    free=("fixes",),
    goals={faster(1.7): speedup, Goal("fixes", at_most=2): fixes_made},
)


def saves_most(times_ms: dict[str, float], speedups: dict[str, float]) -> str:
    """Return the part whose fix takes most off the step."""
    return max(speedups, key=lambda part: times_ms[part] * (1 - 1 / speedups[part]))


@code(
    "08-next-fix",
    hints=("Twenty times as fast: of how many milliseconds?",),
    goals=(ALL_RIGHT,),
    example=saves_most,
)
def next_fix(answer: Answer) -> Numbers:
    """What to fix first.

    Write a function of (times_ms, speedups), two dicts: the milliseconds that each part of a step
    takes, and how many times as fast some of the parts could be made. Return the name of the part
    whose fix makes the step shortest.
    """
    parts = ("data", "copies", "compute", "launches", "update")
    generator = random.Random(11)
    cases = []
    for _ in range(100):
        times = {part: float(generator.randrange(1, 100)) for part in parts}
        speedups = {part: generator.uniform(1.05, 20) for part in generator.sample(parts, 4)}
        cases.append(((times, speedups), saves_most(times, speedups)))
    return share_right(answer, cases)
