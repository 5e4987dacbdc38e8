"""Notebook 08, the capstone: its challenges."""

import random

from labkit.course.slow_script import SlowScript
from labkit.course.task import CLOSE, Goal, code, faster, knobs, ratio, sized_for_a_cpu
from labkit.spec import Pipeline

STARVED = Pipeline(
    dataset="sleep", prep_ms=80.0, model="mlp", width=256, depth=2, image_px=48, batch_size=16,
    steps=50, seconds=None, xray=False,
)  # fmt: skip

knobs(
    "08-two-fixes",
    "two fixes, two and a half times as fast",
    "Choose only two fixes that make the slow script at least two and a half times as fast. Answer "
    "with {'fixes': ['...', '...']}, of data, items, copies, launches, precision and memory.",
    faster(2.5),
    Goal("fixes", lambda run, _: len(run.event("spec")["script"]["fixes"]), at_most=2),
    hints=(
        "What was on top of the very first diagnosis?",
        "And what was there when that was fixed?",
    ),
    base=SlowScript(), free=("fixes",), tolerance=0.02,
    solution={"fixes": ("items", "copies")},  # on a GPU "data" and "items" are not enough
)  # fmt: skip

knobs(
    "08-flat",
    "flat",
    "Bring this pipeline to seven tenths of the samples a second that this machine can train when "
    "its data costs nothing, without touching the model.",
    Goal("samples/s over those of free data", ratio("throughput"), at_least=0.7, close=CLOSE),
    hints=(
        "w workers bring a batch every prep_ms / w: how many keep up with compute_ms?",
        "Workers that sleep need no core: there may be more of them than cores.",
    ),
    base=STARVED, against=STARVED.but(prep_ms=0.0),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "non_blocking"),
    needs=sized_for_a_cpu, solution=STARVED.but(num_workers=12),
)  # fmt: skip


def most_saved(times_ms, speedups):
    """Amdahl: what counts is the time that goes away."""
    return max(speedups, key=lambda part: times_ms[part] * (1 - 1 / speedups[part]))


@code(
    "08-next-fix",
    "Twenty times as fast: of how many milliseconds?",
    solution=most_saved, wrong=Goal("wrong choices", at_most=0),
)  # fmt: skip
def next_fix(answer, _torch):
    """what to fix first.

    Write a function of (times_ms, speedups), two dicts: the milliseconds that each part of a step
    takes, and how many times as fast some of the parts could be made. Return the name of the part
    whose fix makes the step shortest.
    """
    parts = ("data", "copies", "compute", "launches", "update")
    rng, wrong = random.Random(11), 0
    for _ in range(100):
        times = {part: rng.randrange(1, 100) for part in parts}
        speedups = {part: rng.uniform(1.05, 20) for part in rng.sample(parts, 4)}
        wrong += answer(dict(times), dict(speedups)) != most_saved(times, speedups)
    return {"wrong": wrong}
