"""The settings of the slow script: what each of its fixes is called, and which knobs it turns.

Standard library only: the kernel reads it to describe the run, the bench to make it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# In the order in which the bottleneck moves; the course's notebook 08 climbs them as a ladder
FIXES = {
    "data": "loader workers prepare batches beside the training loop",
    "items": "a lean __getitem__: nothing parsed twice, no Python loop over pixels",
    "copies": "one pinned block of bytes a batch, copied without waiting, for lines of floats",
    "launches": "whole-batch operations for Python loops, no .item() in every step",
    "precision": "autocast to 16 bits (bf16; fp16 on cards older than Ampere)",
    "memory": "a fused SiLU and optimizer, channels-last layout: fewer passes over memory",
    "compile": "torch.compile; not part of 'the ladder', since compiling takes longer than it",
}
LADDER = tuple(FIXES)[:-1]

MOST_WORKERS, PREFETCH = 8, 2  # with lean items eight workers feed any card
STEPS = 30  # at least: 20 get an x-ray, and a verdict needs 12 behind the warm-up


def check(fixes: Iterable[str]) -> tuple[str, ...]:
    """Return the fixes in the order of the ladder; raise ValueError for one that is none."""
    asked = list(fixes)
    for name in asked:
        if name not in FIXES:
            raise ValueError(f"{name!r} is no fix of the slow script: use {', '.join(FIXES)}.")
    return tuple(name for name in FIXES if name in asked)


def workers_for(cores: int) -> int:
    """Return how many loader workers the script gets: one a core, two at least, eight at most."""
    return max(2, min(cores, MOST_WORKERS))


def usual_steps(cores: int) -> int:
    """Return enough steps for a verdict: those of batches prefetched at the start are a third.

    They count as warm-up, of which a run leaves out no more than that.
    """
    return max(STEPS, 3 * PREFETCH * workers_for(cores))


def settings(
    fixes: Iterable[str], gpu: bool, cores: int, steps: int, half: str = "bf16"
) -> dict[str, Any]:
    """Return the knobs of the script with `fixes`, every one that the bench reads.

    Args:
        fixes: Names from FIXES.
        gpu: Whether the device is one: then the model is left to the bench, which sizes it for the
            card, and the batch is so large that 16 bits do not make its kernels too small.
        cores: CPU cores.
        steps: Batches to train on.
        half: The 16-bit format.
    """
    fixes, (width, depth) = set(check(fixes)), (None, None) if gpu else (40, 5)
    workers = workers_for(cores) if "data" in fixes else 0
    return {
        "dataset": "jpeg", "io_ms": 0.0, "prep_ms": None, "stall_ms": 0.0, "augment": 0, "seed": 0,
        "image_px": 48,
        "batch_size": 48 if gpu else 16,
        "num_workers": workers,
        "prefetch_factor": PREFETCH if workers else None,
        "persistent_workers": False,
        "pin_memory": gpu and "copies" in fixes,
        "non_blocking": gpu and "copies" in fixes,
        "prefetch_to_device": False,
        "model": "cnn", "width": width, "depth": depth,
        "precision": half if "precision" in fixes else "fp32",
        "channels_last": "memory" in fixes,
        "fused_optimizer": "memory" in fixes,
        "compile": "default" if "compile" in fixes else None,
        "accumulation_steps": 1, "steps": steps, "seconds": 100.0, "device": "auto",
    }  # fmt: skip
