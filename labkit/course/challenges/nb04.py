"""The challenges of notebook 04, batch sizing."""

from __future__ import annotations

import torch

from labkit.api import Run
from labkit.course.challenge import Answer
from labkit.course.code_challenge import Numbers, Refused, code
from labkit.course.goals import Goal
from labkit.course.knob_challenge import KnobChallenge
from labkit.spec import Pipeline

BATCH = 32
PADDING = "share of the tokens that is padding"

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


def samples_per_update(run: Run, _baseline: object) -> float:
    """Return how many samples an update of the weights is made from."""
    knobs = run.pipeline.to_dict()
    return knobs["batch_size"] * knobs["accumulation_steps"]


FIT = KnobChallenge(
    key="04-fit",
    title="1024 samples an update in 2 GiB",
    text="This pipeline takes more than 2 GiB. Train on 1024 samples an update all the same, all "
    "1024 of them, with a peak of 2 GiB or less. steps counts batches.",
    hints=(
        "Activations grow with the batch; weights and gradients do not.",
        "16 batches of 64 are 1024 samples: and how many steps is that?",
    ),
    start=WHOLE,
    example=WHOLE.but(batch_size=64, accumulation_steps=16, steps=16),
    free=("batch_size", "accumulation_steps", "steps"),
    goals={
        Goal("samples an update", at_least=1024, at_most=1024): samples_per_update,
        Goal("samples", at_least=1024): lambda run, _: run.samples,
        Goal("peak memory, GiB", at_most=2.0): lambda run, _: run.peak_memory_gib,
    },
)


def sorted_then_shuffled(lengths: list[int], batch_size: int) -> list[list[int]]:
    """Return batches of documents of about a length, in random order."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    return [batches[place] for place in torch.randperm(len(batches)).tolist()]


@code(
    "04-by-length",
    hints=(
        "A row is padded to the longest of its batch: which documents belong together?",
        "Sort, cut into batches, and then shuffle the batches.",
    ),
    goals=(Goal(PADDING, at_most=0.05),),
    example=sorted_then_shuffled,
)
def by_length(answer: Answer) -> Numbers:
    """Batches of documents of similar length.

    Write a function of (lengths, batch_size) that returns batches: lists of indices into lengths,
    each index once, every batch full but one, in random order: not the short ones first.
    """
    lengths = (5 + 500 * torch.rand(3000) ** 4).int().tolist()  # most are short
    batches = [list(batch) for batch in answer(list(lengths), BATCH)]
    if sorted(index for batch in batches for index in batch) != list(range(len(lengths))):
        raise Refused("Every document has to be in one batch, and in one only.")
    sizes = [len(batch) for batch in batches]
    if sum(size != BATCH for size in sizes) > 1 or max(sizes) > BATCH:
        raise Refused("Every batch but one has to hold batch_size documents.")
    longest = [max(lengths[index] for index in batch) for batch in batches]
    if longest in (sorted(longest), sorted(longest, reverse=True)):
        raise Refused("The batches come in order of length: a model has to meet them mixed.")
    computed = sum(length * size for length, size in zip(longest, sizes, strict=True))
    return {PADDING: 1 - sum(lengths) / computed}
