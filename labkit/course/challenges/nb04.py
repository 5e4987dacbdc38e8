"""The challenge of notebook 04, batch sizing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.course.task import Goal, KnobTask
from labkit.spec import Pipeline

if TYPE_CHECKING:
    from labkit.results.run import Run

WHOLE = Pipeline(
    dataset="sleep",
    prep_ms=0.0,
    batch_size=1024,
    model="cnn",
    width=12,
    depth=1,
    image_px=256,
    steps=1,
    seconds=None,
    xray=False,
)


def samples_per_update(run: Run, _baseline: Run | None) -> float:
    """Return how many samples an update of the weights is made from."""
    knobs = run.pipeline.to_dict()
    return knobs["batch_size"] * knobs["accumulation_steps"]


def samples(run: Run, _baseline: Run | None) -> float:
    """Return how many samples were trained on."""
    return run.samples


def peak_gib(run: Run, _baseline: Run | None) -> float | None:
    """Return the peak of the device's memory, GiB."""
    return run.peak_memory_gib


FIT = KnobTask(
    key="04-fit",
    title="1024 samples an update in 2 GiB",
    text="This pipeline takes more than 2 GiB. Train on 1024 samples an update all the same, all "
    "1024 of them, with a peak of 2 GiB or less. steps counts batches.",
    hints=(
        "Activations grow with the batch; weights and gradients do not.",
        "16 batches of 64 are 1024 samples: and how many steps is that?",
    ),
    base=WHOLE,
    solution=WHOLE.but(batch_size=64, accumulation_steps=16, steps=16),
    free=("batch_size", "accumulation_steps", "steps"),
    goals={
        Goal("samples an update", at_least=1024, at_most=1024): samples_per_update,
        Goal("samples", at_least=1024): samples,
        Goal("peak memory, GiB", at_most=2.0): peak_gib,
    },
    compares=False,
)
