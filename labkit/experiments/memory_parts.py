"""What fills the memory: weights, gradients, optimizer state, activations, of a few models."""

from __future__ import annotations

from typing import Any

from labkit.bench.memory_parts import measure_step
from labkit.bench.model_size import plain_job
from labkit.bench.workbench import Workbench


def measure(job: Any, bench: Workbench) -> None:
    """Train a few steps of every model at every batch size and write the bytes of each part.

    The models are the bench's own, trained in FP32 with AdamW, as by `lk.run`.
    """
    models = [job.model] if isinstance(job.model, str) else job.model
    sizes = [job.batch_size] if isinstance(job.batch_size, int) else job.batch_size
    cases = [(model, size) for model in models for size in sizes]
    for i, (model, size) in enumerate(cases):
        bench.stage("measuring memory", i, len(cases))
        knobs = {"width": job.width, "depth": job.depth, "image_px": job.image_px}
        step = plain_job(bench.device, model=model, batch_size=size, **knobs)
        parts = measure_step(step, bench.device)
        bench.write("training step", values=parts, model=model, batch_size=size)
