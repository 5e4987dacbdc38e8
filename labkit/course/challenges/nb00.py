"""The challenge of notebook 00, start here."""

from labkit.course.knob_challenge import KnobChallenge, faster
from labkit.spec import Pipeline

NETWORK = Pipeline(io_ms=10.0, xray=False)

FIRST = KnobChallenge(
    key="00-first",
    title="Your first improvement",
    text="The images of this pipeline come from a network drive. Make it train at least 1.7 times "
    "as many samples a second, by its loader settings alone.",
    hints=(
        "What prepares the batches while the device computes? With num_workers=0, nothing does.",
        "Each worker takes a share of the waiting: try num_workers=4.",
    ),
    start=NETWORK,
    example=NETWORK.but(num_workers=6),
    free=("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"),
    goals=faster(1.7),
)
