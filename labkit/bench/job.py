"""The job of a run: what a `Pipeline` asks for, with the value that is used for every knob."""

from __future__ import annotations

from types import SimpleNamespace


class Job(SimpleNamespace):
    """Every knob's final value; `labkit.spec.Pipeline` explains each."""

    dataset: str
    prep_ms: float
    io_ms: float
    stall_ms: float
    stall_every: int
    image_px: int
    augment: int
    batch_size: int
    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    non_blocking: bool
    prefetch_to_device: bool
    model: str
    width: int
    depth: int
    precision: str
    accumulation_steps: int
    compile: str | None
    channels_last: bool
    fused_optimizer: bool
    steps: int
    seconds: float | None
    xray: bool
    seed: int
    device: str
    shard: tuple[int, int] = (0, 1)  # its rank, and how many there are, in a distributed run
