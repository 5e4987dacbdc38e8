"""Challenges about the whole loop, and more than one device: notebooks 08 and 09."""

from __future__ import annotations

import sys
from typing import Any

from labkit.course.task import CodeTask, Goal, KnobTask, counted, exactly, ratio
from labkit.course.tasks.loader import faster, sized_for_a_cpu
from labkit.results.slow_script import SlowScript
from labkit.spec import Distributed, Pipeline

STARVED = Pipeline(
    dataset="sleep", prep_ms=80.0, model="mlp", width=256, depth=2, image_px=48, batch_size=16,
    steps=50, seconds=None, xray=False,
)  # fmt: skip
PAIR = (
    Distributed(
        Pipeline(
            dataset="sleep", prep_ms=0.0, model="mlp", width=64, depth=1, image_px=16,
            batch_size=64, steps=32, xray=False,
        ),
        ranks=2,
    )
    if sys.platform != "win32"
    else None
)  # fmt: skip


def fixes(run: Any, _baseline: Any) -> float:
    """How many fixes a run of the slow script has."""
    return len(run.event("spec")["script"]["fixes"])


def exchanging(ranks: Any, _baseline: Any) -> float | None:
    """The share of the steps in which rank 0 exchanges gradients."""
    exchanged = ranks[0].exchange_ns
    return float((exchanged[:, 0] == exchanged[:, 0]).mean()) if len(exchanged) else None  # no NaN


def update_size(ranks: Any, _baseline: Any) -> float:
    """Samples that one update is made of, on all ranks."""
    return ranks.pipeline.batch_size * ranks.pipeline.accumulation_steps * ranks.world_size


ALL_TASKS = (
    KnobTask(
        key="08-two-fixes",
        title="two fixes, two and a half times as fast",
        text=(
            "Choose only two fixes that make the slow script at least two and a half times as "
            "fast. Answer with {'fixes': ['...', '...']}, of data, items, copies, launches, "
            "precision and memory."
        ),
        goals=(faster(2.5), exactly("fixes", fixes, at_most=2)),
        hints=(
            "What was on top of the very first diagnosis?",
            "And what was there when that was fixed?",
        ),
        base=SlowScript(),
        free=("fixes",),
        tolerance=0.02,
        solution={"fixes": ("items", "copies")},  # on a GPU "data" and "items" are not enough
        wrong={
            "what a GPU is bought for": {"fixes": ("precision", "memory")},
            "the device's own time": {"fixes": ("copies", "launches")},
            "cheat: all at once": {"fixes": ("data", "items", "copies", "launches", "memory")},
            "cheat: fewer samples": {"fixes": ("data",), "steps": 4},
        },
    ),
    KnobTask(
        key="08-flat",
        title="flat",
        text=(
            "Bring this pipeline to seven tenths of the samples a second that this machine can "
            "train when its data costs nothing, without touching the model."
        ),
        goals=(Goal("samples/s over those of free data", ratio("throughput"), at_least=0.7),),
        hints=(
            "w workers bring a batch every prep_ms / w: how many keep up with compute_ms?",
            "Workers that sleep need no core: there may be more of them than cores.",
        ),
        base=STARVED,
        against=STARVED.but(prep_ms=0.0),
        free=(
            "num_workers",
            "prefetch_factor",
            "persistent_workers",
            "pin_memory",
            "non_blocking",
        ),  # fmt: skip
        needs=sized_for_a_cpu,
        solution=STARVED.but(num_workers=12),
        wrong={
            "one worker, deep queue": STARVED.but(num_workers=1, prefetch_factor=16),
            "pinned": STARVED.but(pin_memory=True, non_blocking=True),
            "cheat: nothing to prepare": STARVED.but(prep_ms=0.0),
            "cheat: a slower device": STARVED.but(num_workers=2, width=2048),
        },
    ),
    CodeTask(
        key="08-next-fix",
        title="what to fix first",
        text=(
            "Write a function of (times_ms, speedups), two dicts: the milliseconds that each part "
            "of a step takes, and how many times as fast some of the parts could be made. Return "
            "the name of the part whose fix makes the step shortest."
        ),
        goals=(exactly("wrong choices", counted("wrong"), at_most=0),),
        hints=("Twenty times as fast: of how many milliseconds?",),
        exercise="next_fix",
        solution="next_fix:most_saved",
        wrong={
            "the largest speedup": "next_fix:largest_speedup",
            "the longest part": "next_fix:largest_part",
            "cheat: always the data": "next_fix:always_data",
        },
    ),
    KnobTask(
        key="09-no-sync",
        title="an exchange for every fourth step",
        text=(
            "Two ranks exchange their gradients in every step. Let them do so in a quarter of the "
            "steps, with 128 samples an update as before."
        ),
        goals=(
            exactly("share of steps that exchange", exchanging, at_least=0.2, at_most=0.3),
            exactly("samples an update", update_size, at_least=128, at_most=128),
        ),
        hints=(
            "accumulation_steps alone still exchanges after every backward pass.",
            "A batch a quarter as large, four of them an update, and no_sync.",
        ),
        base=PAIR,
        free=("batch_size", "accumulation_steps", "no_sync"),
        same_losses=False,
        compares=False,
        solution={"batch_size": 16, "accumulation_steps": 4, "no_sync": True},
        wrong={
            "accumulation alone": {"batch_size": 16, "accumulation_steps": 4},
            "no_sync alone": {"no_sync": True},
            "cheat: another update": {"accumulation_steps": 4, "no_sync": True},
            "cheat: one rank": {"ranks": 1, "batch_size": 128},
        },
    ),
    CodeTask(
        key="09-all-reduce",
        title="an all-reduce of your own",
        text=(
            "Write a function of (rank, ranks, mine, send, receive) that runs on every rank and "
            "returns the mean of all ranks' gradients mine, a tensor whose length is a multiple of "
            "ranks. send(to, tensor) and receive(source) are all there is between them. No rank "
            "may send more than its share: 2 (ranks - 1) / ranks times the bytes of mine."
        ),
        goals=(
            exactly("largest error, as a share", counted("error"), at_most=1e-5),
            exactly("most sent, over the share", counted("most"), at_most=1.01),
            exactly("least sent, over the share", counted("least"), at_least=0.99),
        ),
        hints=(
            "In a ring everybody sends to the next and receives from the one before.",
            "mine.chunk(ranks): in ranks - 1 rounds every part is summed, in as many it is shared.",
        ),
        exercise="all_reduce",
        start="all_reduce:everyone_to_everyone",
        solution="all_reduce:ring",
        wrong={
            "everyone to everyone": "all_reduce:everyone_to_everyone",
            "all through rank 0": "all_reduce:through_rank_0",
            "cheat: a shared blackboard": "all_reduce:blackboard",
        },
    ),
    CodeTask(
        key="09-shards",
        title="every rank its share",
        text=(
            "Write a function of (count, ranks, rank, epoch) that returns the indices one rank "
            "trains on in one epoch: every sample is somebody's, all ranks have equally many "
            "(repeat as few samples as that takes), and each epoch has an order of its own."
        ),
        goals=(
            exactly("samples that nobody has", counted("missing"), at_most=0),
            exactly("shares of another length", counted("uneven"), at_most=0),
            exactly("samples repeated needlessly", counted("repeated"), at_most=0),
            exactly("epochs without an order of their own", counted("stale"), at_most=0),
        ),
        hints=(
            "All ranks need the same order: seed it with the epoch, not with the rank.",
            "Fill the order up from its start to a multiple of ranks, then order[rank::ranks].",
        ),
        exercise="shards",
        solution="shards:shared_order",
        wrong={
            "an order for each rank": "shards:own_order",
            "the tail dropped": "shards:tail_dropped",
            "not filled up": "shards:not_filled",
            "cheat: everything for all": "shards:everything",
        },
    ),
)
TASKS = tuple(task for task in ALL_TASKS if getattr(task, "base", ...) is not None)
