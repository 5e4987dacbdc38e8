"""The challenges of notebook 08, the capstone."""

from __future__ import annotations

from labkit.api import Run
from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge, faster
from labkit.course.slow_script import SlowScript


def fixes_made(run: Run, _baseline: object) -> float:
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
    goals=faster(1.7) | {Goal("fixes", at_most=2): fixes_made},
)
