"""Challenges about the device, its crossings and its memory: notebooks 01 and 04."""

from __future__ import annotations

from typing import Any

from labkit.course.task import CodeTask, KnobTask, counted, exactly, own
from labkit.course.tasks.loader import faster
from labkit.spec import Pipeline

ONE = Pipeline(
    dataset="sleep", prep_ms=0.0, batch_size=1, model="mlp", width=512, depth=4, image_px=16,
    steps=60, xray=False,
)  # fmt: skip
WHOLE = Pipeline(
    dataset="sleep", prep_ms=0.0, batch_size=1024, model="cnn", width=12, depth=1, image_px=256,
    steps=1, seconds=None, xray=False,
)  # fmt: skip


def batch_size(run: Any, _baseline: Any) -> float:
    """Samples a step."""
    return run.pipeline.batch_size


def effective_batch(run: Any, _baseline: Any) -> float:
    """Samples an update."""
    return run.pipeline.batch_size * run.pipeline.accumulation_steps


TASKS = (
    CodeTask(
        key="01-one-crossing",
        title="one crossing instead of three hundred",
        text=(
            "Write a function of (pieces, send): pieces is a list of 300 small FP32 tensors of "
            "shapes (rows, 5), and send(tensor) takes one tensor to the other side and returns it "
            "there. Return the same list, all of it sent, with one crossing and no byte more than "
            "the pieces have."
        ),
        goals=(
            exactly("crossings", counted("crossings"), at_most=1),
            exactly("bytes sent, over those of the pieces", counted("bytes"), at_most=1.0),
        ),
        hints=(
            "One contiguous block holds them all: flatten and torch.cat.",
            "Views cost nothing: cut the block up again on the other side with split and view.",
        ),
        exercise="one_copy",
        start="one_copy:each",
        solution="one_copy:together",
        wrong={
            "a crossing each": "one_copy:each",
            "one crossing full of padding": "one_copy:padded",
            "cheat: they stay here": "one_copy:stay_here",
        },
    ),
    CodeTask(
        key="01-batched",
        title="five hundred products in a few calls",
        text=(
            "Write a function of (a, b), two tensors (500, 24, 24), that returns the 500 products "
            "with at most ten operations, and no more FLOPs than the products need."
        ),
        goals=(
            exactly("operations", counted("operations"), at_most=10),
            exactly("FLOPs over those needed", counted("flops"), at_least=1.0, at_most=1.01),
        ),
        hints=("torch.bmm, and @ too, take a whole batch of matrices.",),
        exercise="batched",
        start="batched:one_by_one",
        solution="batched:batched",
        wrong={
            "a loop": "batched:one_by_one",
            "one huge product of zeros": "batched:block_diagonal",
            "cheat: where nobody counts": "batched:in_numpy",
            "cheat: a fifth of them": "batched:first_hundred",
        },
    ),
    CodeTask(
        key="01-intensity",
        title="intensity by arithmetic",
        text=(
            "Write a function of (m, k, n, bytes_per_number) that returns the arithmetic intensity "
            "of an (m, k) times (k, n) product, in FLOP per byte: every input read once, the "
            "result written once, an addition and a multiplication counted as two."
        ),
        goals=(exactly("largest error, as a share", counted("error"), at_most=1e-6),),
        hints=(
            "Each of the m n results takes k multiplications and k additions.",
            "The bytes: m k and k n numbers are read, m n are written.",
        ),
        exercise="intensity",
        solution="intensity:formula",
        wrong={
            "one FLOP for two": "intensity:one_flop",
            "the result is free": "intensity:reads_only",
            "cheat: the rule for squares": "intensity:squares_only",
        },
    ),
    KnobTask(
        key="04-knee",
        title="up to the knee",
        text=(
            "This pipeline takes one sample at a time. Train at least three times as many samples "
            "a second with a batch of 64 at the most."
        ),
        goals=(faster(3.0), exactly("batch_size", batch_size, at_most=64)),
        hints=("A step costs a fixed part and a part per sample. Who pays the fixed part?",),
        base=ONE,
        free=("batch_size",),
        same_losses=False,
        solution=ONE.but(batch_size=64),
        wrong={
            "past the limit": ONE.but(batch_size=256),
            "cheat: a smaller model": ONE.but(batch_size=64, width=32),
            "cheat: less data": ONE.but(batch_size=64, image_px=8),
        },
    ),
    KnobTask(
        key="04-fit",
        title="1024 samples an update in 2 GiB",
        text=(
            "This pipeline takes more than 2 GiB. Train on 1024 samples an update all the same, "
            "all 1024 of them, with a peak of 2 GiB or less. steps counts batches."
        ),
        goals=(
            exactly("samples an update", effective_batch, at_least=1024, at_most=1024),
            exactly("samples", own("samples"), at_least=1024),
            exactly("peak memory, GiB", own("peak_memory_gib"), at_most=2.0),
        ),
        hints=(
            "Activations grow with the batch; weights and gradients do not.",
            "16 batches of 64 are 1024 samples: and how many steps is that?",
        ),
        base=WHOLE,
        free=("batch_size", "accumulation_steps", "steps"),
        same_losses=False,
        compares=False,
        solution=WHOLE.but(batch_size=64, accumulation_steps=16, steps=16),
        wrong={
            "two halves, still too large": WHOLE.but(batch_size=512, accumulation_steps=2, steps=2),
            "a smaller update": WHOLE.but(batch_size=64, accumulation_steps=4, steps=16),
            "cheat: fewer samples": WHOLE.but(batch_size=64, accumulation_steps=16, steps=1),
            "cheat: smaller images": WHOLE.but(
                batch_size=256, accumulation_steps=4, steps=4, image_px=64
            ),
        },
    ),
    CodeTask(
        key="04-training-memory",
        title="what a model takes before the first sample",
        text=(
            "Write a function of (model), a torch.nn.Module, that returns the bytes of its "
            "weights, of their gradients and of AdamW's state, in whatever number format the "
            "weights have. Some models have frozen weights (requires_grad=False)."
        ),
        goals=(exactly("largest error, as a share", counted("error"), at_most=0.01),),
        hints=(
            "AdamW keeps two moments for each weight that is trained, in the weight's format.",
            "A frozen weight has neither a gradient nor moments.",
        ),
        exercise="training_memory",
        solution="training_memory:by_parameter",
        wrong={
            "without the optimizer": "training_memory:weights_and_gradients",
            "sixteen bytes for all": "training_memory:sixteen",
            "cheat: the first one's number": "training_memory:constant",
        },
    ),
)
