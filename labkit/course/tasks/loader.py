"""Challenges about feeding the device: notebooks 00, 02 and 03."""

from __future__ import annotations

from typing import Any

from labkit.course.task import CodeTask, Goal, KnobTask, counted, exactly, ratio
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)
LOADER = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
SMALL = {"model": "mlp", "width": 32, "depth": 1, "image_px": 16, "xray": False}
STALLS = Pipeline(
    dataset="sleep", prep_ms=15.0, stall_ms=600.0, stall_every=21, num_workers=4,
    prefetch_factor=1, steps=168, seconds=None, **SMALL,
)  # fmt: skip
DEEP = Pipeline(
    dataset="sleep", prep_ms=80.0, num_workers=4, prefetch_factor=16, steps=80, seconds=None,
    **SMALL,
)  # fmt: skip
BUSY = Pipeline(
    dataset="sleep", prep_ms=10.0, num_workers=1, model="cnn", width=48, depth=6, xray=False
)


def faster(times: float) -> Goal:
    """Samples/s over the baseline's, measured in the same session."""
    return Goal("samples/s over the baseline's", ratio("throughput"), at_least=times)


def workers(run: Any, _baseline: Any) -> float:
    """Loader processes of a run."""
    return run.pipeline.num_workers


def queued(run: Any, _baseline: Any) -> float:
    """Batches that the workers keep ready."""
    return run.pipeline.num_workers * (run.pipeline.prefetch_factor or 0)


def sized_for_a_cpu(machine: Any) -> str | None:
    """Why a challenge whose model is large for a CPU says nothing on a GPU."""
    return None if machine.kind == "cpu" else "Its model is sized for a CPU; here is a GPU."


TASKS = (
    KnobTask(
        key="00-first",
        title="your first improvement",
        text=(
            "The images of this pipeline come from a network drive. Make it train at least twice "
            "as many samples a second, by its loader settings alone."
        ),
        goals=(faster(2.0),),
        hints=(
            "Who prepares the batches while the device computes? With num_workers=0, nobody.",
            "Each worker takes a share of the waiting: try num_workers=4.",
        ),
        base=NETWORK,
        free=LOADER,
        solution=NETWORK.but(num_workers=6),
        wrong={
            "pinned memory": NETWORK.but(pin_memory=True),
            "cheat: no storage wait": NETWORK.but(num_workers=1, io_ms=0.0),
            "cheat: fewer samples": NETWORK.but(num_workers=4, steps=10),
        },
    ),
    CodeTask(
        key="00-stopwatch",
        title="an honest stopwatch",
        text=(
            "A device works behind your back: work() returns at once, wait() returns when all is "
            "done, and the very first call is slow, because things are being set up. Write a "
            "function of (work, wait, clock) that returns the milliseconds of one call, from at "
            "least ten calls; clock() tells the time in ms. It is tried on simulated devices."
        ),
        goals=(
            exactly("error, as a share", counted("error"), at_most=0.02),
            exactly("calls", counted("calls"), at_least=10),
        ),
        hints=(
            "What does clock() - start measure while the device is still at work?",
            "One call and one wait() before the clock starts; one wait() before it stops.",
        ),
        exercise="stopwatch",
        solution="stopwatch:warmed_and_waited",
        wrong={
            "without waiting": "stopwatch:no_wait",
            "without a warm-up": "stopwatch:cold",
            "cheat: a constant": "stopwatch:constant",
        },
    ),
    KnobTask(
        key="02-feed",
        title="the cheapest cure",
        text=(
            "Feed this pipeline with at most three workers, so that it trains at least twice as "
            "fast as with none."
        ),
        goals=(faster(2.0), exactly("workers", workers, at_most=3)),
        hints=(
            "Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
            "Twice as fast means half the step: how many workers bring the wait below that?",
        ),
        base=NETWORK,
        free=("num_workers", "prefetch_factor"),
        solution=NETWORK.but(num_workers=3),
        wrong={
            "one worker": NETWORK.but(num_workers=1, prefetch_factor=8),
            "too many": NETWORK.but(num_workers=8),
            "cheat: no augmentation": NETWORK.but(num_workers=1, augment=0),
            "cheat: the same few samples": NETWORK.but(num_workers=1, batch_size=1),
        },
    ),
    CodeTask(
        key="02-busy-share",
        title="what nvidia-smi computes",
        text=(
            "Write a function of (intervals, start, end): intervals is a list of (begin, stop) in "
            "ms during which kernels ran, in any order and overlapping at times. Return the share "
            "of the window from start to end in which at least one ran, 0 to 1."
        ),
        goals=(exactly("largest error", counted("error"), at_most=1e-6),),
        hints=(
            "Two kernels at once do not make the device twice as busy.",
            "Sort the intervals; count of each only what lies beyond the end of those before.",
        ),
        exercise="busy_share",
        solution="busy_share:merged",
        wrong={
            "overlaps counted twice": "busy_share:counted_twice",
            "not cut to the window": "busy_share:not_cut",
            "cheat: always busy": "busy_share:any_at_all",
        },
    ),
    KnobTask(
        key="02-less-busy",
        title="less busy, and faster",
        text=(
            "This pipeline is busy nearly all the time. Change its model so that the busy share "
            "falls to four fifths or less, and yet at least twice as many samples are trained a "
            "second. You will not quote utilization as a measure of speed again."
        ),
        goals=(
            faster(2.0),
            Goal("busy share over the baseline's", ratio("utilization"), at_most=0.8),
        ),
        hints=(
            "What does the device do when it has finished a batch before the next one is ready?",
            "A model that needs less than prep_ms for a batch has to wait for the loader.",
        ),
        base=BUSY,
        free=("model", "width", "depth"),
        same_losses=False,
        needs=sized_for_a_cpu,
        solution=BUSY.but(width=4, depth=1),
        wrong={
            "a larger model": BUSY.but(depth=8),
            "cheat: less busy, no faster": BUSY.but(prep_ms=400.0),
            "cheat: smaller images": BUSY.but(image_px=8),
        },
    ),
    CodeTask(
        key="03-lean",
        title="a lean __getitem__",
        text=(
            "Write a dataset class with the same items as this one (labels, and FP32 images of "
            "shape (3, px, px) in 0 to 1), which takes a quarter of the time at the most. The "
            "constructor is timed as well, on data it has not seen, and so is every item, once."
        ),
        goals=(Goal("times as fast", counted("ratio"), at_least=4.0),),
        hints=(
            "What does __getitem__ do for one item that it could do once for all?",
            "torch.frombuffer makes a tensor of bytes without looking at them one by one.",
        ),
        exercise="lean",
        kind="class",
        start="lean:Slow",
        solution="lean:Lean",
        wrong={
            "parsed once, looped still": "lean:ParsedOnce",
            "cheat: work before the clock": "lean:BeforeTheClock",
            "cheat: half of the items": "lean:HalfTheItems",
            "cheat: a stopped clock": "lean:StoppedClock",
        },
    ),
    KnobTask(
        key="03-stalls",
        title="ride over the stalls",
        text=(
            "The disk stalls for 600 ms in one of 21 batches. Train at least 1.6 times as fast all "
            "the same, with the same four workers."
        ),
        goals=(faster(1.6),),
        hints=(
            "Batches are handed over in order: while one worker stalls, the others fill the queue.",
            "How many batches can three workers make in 600 ms? So many places the queue needs.",
        ),
        base=STALLS,
        free=("prefetch_factor",),
        solution=STALLS.but(prefetch_factor=32),
        wrong={
            "PyTorch's usual 2": STALLS.but(prefetch_factor=2),
            "cheat: fewer stalls": STALLS.but(prefetch_factor=32, stall_every=100),
            "cheat: more workers": STALLS.but(num_workers=8),
        },
    ),
    KnobTask(
        key="03-small-queue",
        title="a quarter of the queue",
        text="Four workers keep 64 batches ready. Keep at most 16, and at least 0.8 of the speed.",
        goals=(
            faster(0.8),
            exactly("num_workers * prefetch_factor", queued, at_most=16),
        ),
        hints=(
            "Nothing stalls here. What, then, are 64 batches in memory good for?",
            "The workers set the speed; the queue only evens it out.",
        ),
        base=DEEP,
        free=("num_workers", "prefetch_factor"),
        solution=DEEP.but(prefetch_factor=2),
        wrong={
            "one worker with it all": DEEP.but(num_workers=1),
            "still too deep": DEEP.but(prefetch_factor=8),
            "cheat: less to prepare": DEEP.but(num_workers=1, prep_ms=20.0),
        },
    ),
)
