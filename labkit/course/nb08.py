"""Notebook 08, the capstone: its challenges."""

import random

from labkit.course.slow_script import SlowScript
from labkit.course.task import CLOSE, Goal, KnobTask, code, faster, ratio, sized_for_a_cpu
from labkit.spec import Pipeline

STARVED = Pipeline(
    dataset="sleep", prep_ms=80.0, model="mlp", width=256, depth=2, image_px=48, batch_size=16,
    steps=50, seconds=None, xray=False,
)  # fmt: skip

KnobTask(
    "08-two-fixes", "two fixes, two and a half times as fast",
    "Choose only two fixes that make the slow script at least two and a half times as fast. Answer "
    "with {'fixes': ['...', '...']}, of data, items, copies, launches, precision and memory.",
    (faster(2.5),
     Goal("fixes", lambda run, _: len(run.event("spec")["script"]["fixes"]), at_most=2)),
    ("What was on top of the very first diagnosis?", "And what was there when that was fixed?"),
    SlowScript(), {"fixes": ("items", "copies")},  # on a GPU "data" and "items" are not enough
    free=("fixes",),
)  # fmt: skip

KnobTask(
    "08-flat", "flat",
    "Bring this pipeline to seven tenths of the samples a second that this machine can train when "
    "its data costs nothing, without touching the model.",
    (Goal("samples/s over those of free data", ratio("throughput"), at_least=0.7, close=CLOSE),),
    ("w workers bring a batch every prep_ms / w: how many keep up with compute_ms?",
     "Workers that sleep need no core: there may be more of them than cores."),
    STARVED, STARVED.but(num_workers=12), sized_for_a_cpu, against=STARVED.but(prep_ms=0.0),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "non_blocking"),
)  # fmt: skip


@code("08-next-fix", "Twenty times as fast: of how many milliseconds?",
      wrong=Goal("wrong choices", at_most=0))  # fmt: skip
class NextFix:
    """what to fix first.

    Write a function of (times_ms, speedups), two dicts by part of a step: its ms, how many times
    as fast it could be. Return the name of the part whose fix makes the step shortest.
    """

    def solution(times_ms, speedups):
        return max(speedups, key=lambda part: times_ms[part] * (1 - 1 / speedups[part]))

    def check(answer):
        parts = ("data", "copies", "compute", "launches", "update")
        rng, wrong = random.Random(11), 0
        for _ in range(100):
            times = {part: rng.randrange(1, 100) for part in parts}
            speedups = {part: rng.uniform(1.05, 20) for part in rng.sample(parts, 4)}
            wrong += answer(dict(times), dict(speedups)) != NextFix.solution(times, speedups)
        return {"wrong": wrong}
