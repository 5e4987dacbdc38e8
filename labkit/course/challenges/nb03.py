"""The challenges of notebook 03, DataLoader tuning."""

from __future__ import annotations

from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge, faster
from labkit.spec import Pipeline
from labkit.tuning.trial import in_flight

STALLS = Pipeline(
    dataset="sleep",
    prep_ms=15.0,
    stall_ms=600.0,
    stall_every=21,
    num_workers=4,
    prefetch_factor=1,
    steps=168,
    seconds=None,
    model="mlp",
    width=32,
    depth=1,
    image_px=16,
    xray=False,
)
KEPT_READY = Goal("num_workers * prefetch_factor", at_most=64)

RIDE_OVER = KnobChallenge(
    key="03-stalls",
    title="Ride over the stalls",
    text="The disk stalls for 600 ms in one of 21 batches. Train at least 1.6 times as fast all "
    "the same, with the same four workers. Waiting batches take memory: keep at most 64 ready.",
    hints=(
        "Batches come in order: while one worker stalls, the others fill the queue.",
        "21 batches keep four workers busy for 230 ms, a stall included. How many is that in 600 "
        "ms? That many places ride over a stall.",
    ),
    start=STALLS,
    example=STALLS.but(prefetch_factor=14),
    free=("prefetch_factor",),
    goals=faster(1.6) | {KEPT_READY: lambda run, _: in_flight(run.pipeline.to_dict())},
)
