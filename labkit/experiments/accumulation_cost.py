"""What accumulation saves and costs: memory and samples/s against the micro-batch's size."""

from __future__ import annotations

from typing import Any

import torch

from labkit.bench.loop import Trainer
from labkit.bench.memory_parts import measure_step
from labkit.bench.model_size import noise_batch, plain_job
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """One update from `effective` samples, in micro-batches of 1, 2, 4 ... up to all at once.

    Timed as a whole: every forward and backward of the update and the optimizer's step. Memory by
    part, as the experiment memory_parts counts it: one micro-batch's activations at a time.
    """
    sizes = [2**i for i in range(job.effective.bit_length()) if job.effective % 2**i == 0]
    for i, micro in enumerate(sizes):
        bench.stage("accumulating", i, len(sizes))
        knobs = {"width": job.width, "depth": job.depth, "image_px": job.image_px}
        count = job.effective // micro
        step = plain_job(
            bench.device, model=job.model, batch_size=micro, accumulation_steps=count, **knobs
        )
        parts = measure_step(step, bench.device)
        case = {"effective": job.effective, "micro": micro, "steps": count}
        bench.write("memory", values=parts, **case)
        bench.time(one_update(step, bench.device), of="update", min_time_s=job.seconds_each, **case)


def one_update(step: Any, device: torch.device) -> Any:
    """Return a function that makes one update from `accumulation_steps` micro-batches."""
    trainer = Trainer(step, device)
    batch = trainer.to_device(*noise_batch(step))

    def update() -> None:
        for i in range(step.accumulation_steps):
            trainer.compute(*batch, update=i + 1 == step.accumulation_steps)

    return update
