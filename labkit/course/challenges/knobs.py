"""The challenges that are answered with settings, and judged by a run of them."""

from labkit.course.challenge import Goal, KnobChallenge, speedup_over
from labkit.instruments.loader_knobs import in_flight
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)

FIRST = KnobChallenge(
    key="00-first",
    text="The images of this pipeline come from a network drive. Make it train at least 1.7 times "
    "as many samples a second, by its loader settings alone.",
    hints=(
        "What prepares the batches while the device computes? With num_workers=0, nothing does.",
        "Each worker takes a share of the waiting: try num_workers=4.",
    ),
    start=NETWORK,
    example=NETWORK.but(num_workers=6),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
    goals=lambda run: [speedup_over(NETWORK, run, 1.7)],
)

FEED = KnobChallenge(
    key="02-feed",
    text="Feed this pipeline with at most three workers, so that it trains at least 1.7 times as "
    "fast as with none.",
    hints=(
        "Take wait_ms and compute_ms of the run without workers: w workers divide the wait.",
        "1.7 times as fast means 0.59 of the step: how many workers bring the wait below that?",
    ),
    start=NETWORK,
    example=NETWORK.but(num_workers=3),
    free=("num_workers", "prefetch_factor"),
    goals=lambda run: [
        speedup_over(NETWORK, run, 1.7),
        Goal("workers", run.pipeline.num_workers, "most", 3),
    ],
)

SMALL = Pipeline(dataset="sleep", depth=1, seconds=None, xray=False)
STALLS = SMALL.but(
    prep_ms=15.0,
    stall_ms=600.0,
    stall_every=21,
    num_workers=4,
    prefetch_factor=1,
    steps=168,
    model="mlp",
    width=32,
    image_px=16,
)

RIDE_OVER = KnobChallenge(
    key="03-stalls",
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
    goals=lambda run: [
        speedup_over(STALLS, run, 1.6),
        Goal("num_workers * prefetch_factor", in_flight(vars(run.pipeline)), "most", 64),
    ],
)

WHOLE = SMALL.but(prep_ms=0.0, batch_size=1024, width=12, image_px=256, steps=1)

FIT = KnobChallenge(
    key="04-fit",
    text="This pipeline takes more than 2 GiB. Train on 1024 samples an update all the same, all "
    "1024 of them, with a peak of 2 GiB or less. steps counts batches.",
    hints=(
        "Activations grow with the batch; weights and gradients do not.",
        "16 batches of 64 are 1024 samples: and how many steps is that?",
    ),
    start=WHOLE,
    example=WHOLE.but(batch_size=64, accumulation_steps=16, steps=16),
    free=("batch_size", "accumulation_steps", "steps"),
    goals=lambda run: [
        Goal(
            "samples an update", run.asked.batch_size * run.asked.accumulation_steps, "least", 1024
        ),
        Goal("samples", run.samples, "least", 1024),
        Goal("peak memory, GiB", run.peak_memory_gib, "most", 2.0),
    ],
)
